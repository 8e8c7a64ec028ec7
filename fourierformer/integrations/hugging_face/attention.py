"""Fourier attention in the models of transformers: `attn_implementation="fourier"`.

from transformers import AutoModelForCausalLM, LlamaConfig
import fourierformer.integrations.hugging_face as hugging_face      # registers "fourier"
model = AutoModelForCausalLM.from_config(LlamaConfig(...), attn_implementation="fourier")
hugging_face.learn_radius(model)                                    # else the radius is fixed, as sharp as softmax

transformers does not store the choice in config.json: pass it to `from_pretrained`, which otherwise runs softmax. A
learned radius is stored with the weights; to load it, call `learn_radius` first and then
`model.load_state_dict(safetensors.torch.load_file(...), strict=False)`.

Distances of rotated queries and keys depend on the positions, not only on their difference as inner products do: with
rotary positions, padded rows need their positions without padding, as in `generate`.
"""

import math
import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers import masking_utils as masks

from fourierformer import fourier_attention
from fourierformer.errors import SetupError
from fourierformer.marks import mark

POWER, EPS = 4, 0.0  # the paper's formula


def fourier_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, position_bias: Tensor | None = None, **options: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as called by transformers: query (B, H, N, D), key and value (B, G, M, D) -> (B, N, H, D), no weights.

    attention_mask from `fourier_mask`: None or the keys to keep (B, M), where `is_causal` hides later keys; or a mask
    of pairs (B, H or 1, N or 1, M), without regard to `is_causal`.
    """
    for name in ("softcap", "s_aux"):  # of Gemma 2, and the sinks of gpt-oss
        if options.get(name) is not None:
            raise SetupError(f'attn_implementation="fourier" has no {name}, which {type(module).__name__} needs')
    of_keys = attention_mask is None or attention_mask.dim() == 2
    causal = of_keys and bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    keep, pairs = (attention_mask, None) if of_keys else (None, attention_mask)
    if position_bias is not None:
        pairs = _biased(pairs, position_bias)
    radius = getattr(module, "fourier_radius", None)
    if radius is None:
        radius = matched_to(query.shape[-1] ** -0.5 if scaling is None else scaling)
    mixed = fourier_attention(
        query, key, value, radius,
        power=POWER, eps=EPS, causal=causal, keep=keep, attn_mask=pairs, dropout_p=dropout, enable_gqa=True,
    )  # fmt: skip
    return mixed.transpose(1, 2).contiguous(), None


def _biased(mask: Tensor | None, bias: Tensor) -> Tensor:
    """A bias of pairs, as in T5, for the pairs that the mask keeps."""
    if mask is None:
        return bias
    return bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask


def matched_to(scaling: float) -> float:
    """The radius whose kernel is as sharp as softmax(scaling q k): near 0, q k enters log w with (power / 3) R^2."""
    return math.sqrt(3 * scaling / POWER)


def fourier_mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: int | Tensor = 0, kv_offset: int = 0,
    mask_function=masks.causal_mask_function, attention_mask: Tensor | None = None,
    config: PretrainedConfig | None = None, **options,
) -> Tensor | None:  # fmt: skip
    """The mask of `fourier_attention_forward`: of keys where that is sufficient, because every kernel supports it; else
    of pairs (a sliding window, packed sequences, a cache longer than its content).

    Called by transformers, once for all layers; attention_mask (B, seen tokens) is True for tokens, False for padding.
    """
    if config is not None:
        _check_replaceable(config)
    # a tensor where the cache has a fixed size: its content ends before its keys do
    at_the_end = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    keep = masks.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if keep is not None:
        keep = keep[:, kv_offset : kv_offset + kv_length].bool()
    if mask_function is masks.causal_mask_function and at_the_end:
        return keep
    if mask_function is masks.bidirectional_mask_function:
        if keep is None:
            keep = torch.ones(batch_size, kv_length, dtype=torch.bool, device=options.get("device", "cpu"))
        return keep[:, None, None]
    options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return masks.sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, config=config, **options
    )  # fmt: skip


def _check_replaceable(config: PretrainedConfig) -> None:
    """SetupError for a model with its own attention: it would take no mask for "all visible" and leak the future."""
    module = sys.modules.get(type(config).__module__.replace("configuration_", "modeling_"))
    if module is not None and not hasattr(module, "ALL_ATTENTION_FUNCTIONS"):
        own = "has an attention of its own, which transformers cannot replace"
        raise SetupError(f"{config.model_type} {own}: use a model such as gpt2, llama or bert")


def learn_radius(model: nn.Module, radius: float | None = None, *, per_head: bool = False) -> list[nn.Parameter]:
    """Add a radius that is trained and saved with the model to every attention layer of a transformers model.

    radius: initial value; None: as sharp as the softmax. Returns the new parameters; exclude them from weight decay.
    """
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "is_causal") and hasattr(m, "scaling")]
    if any(hasattr(layer, "fourier_radius") for layer in layers):
        raise SetupError(f"{type(model).__name__} has learned radii already: each layer's is its fourier_radius")
    if not layers:
        missing = "has no attention layer with `is_causal` and `scaling`"
        raise SetupError(f"{type(model).__name__} {missing}: use a model such as gpt2, llama or bert")
    for layer in layers:
        start = matched_to(layer.scaling) if radius is None else radius
        shape = (layer.config.num_attention_heads, 1) if per_head else ()
        device = next(layer.parameters()).device
        layer.fourier_radius = nn.Parameter(torch.full(shape, float(start), device=device))
        mark(layer, "fourier_radius", no_weight_decay=True)
    return [layer.fourier_radius for layer in layers]


AttentionInterface.register("fourier", fourier_attention_forward)
AttentionMaskInterface.register("fourier", fourier_mask)
