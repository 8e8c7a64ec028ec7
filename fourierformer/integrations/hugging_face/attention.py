"""Fourier attention in the models of transformers: `attn_implementation="fourier"`.

from transformers import AutoModelForCausalLM, LlamaConfig
import fourierformer.integrations.hugging_face as hugging_face      # registers "fourier"
model = AutoModelForCausalLM.from_config(LlamaConfig(...), attn_implementation="fourier")
hugging_face.learn_radius(model)                                    # else the radius is fixed, as sharp as softmax

transformers does not store the choice in config.json: pass it to `from_pretrained`, which otherwise runs softmax. A
learned radius is stored with the weights, but `from_pretrained` leaves it out: `load_radius(model, folder)` adds it.

Distances of rotated queries and keys depend on the positions, not only on their difference as inner products do: with
rotary positions, padded rows need their positions without padding, as in `generate`.
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers import masking_utils as masks
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from fourierformer import fourier_attention
from fourierformer.errors import SetupError
from fourierformer.marks import mark

POWER, EPS = 4, 0.0  # the paper's formula


def fourier_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, position_bias: Tensor | None = None, **options: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as called by transformers: query (B, H, N, D), key and value (B, G, M, D) -> (B, N, H, D), no weights.

    attention_mask from `fourier_mask`: the keys to keep (B, M), where later keys are hidden, or a mask of pairs
    (B, H or 1, N or 1, M). None of a model that makes no mask: `is_causal` of the call, else of the layer, decides.
    """
    for name in ("softcap", "s_aux"):  # of Gemma 2, and the sinks of gpt-oss
        if options.get(name) is not None:
            raise SetupError(f'attn_implementation="fourier" has no {name}, which {type(module).__name__} needs')
    causal, keep, pairs = True, attention_mask, None
    if attention_mask is None:
        causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    elif attention_mask.dim() != 2:
        causal, keep, pairs = False, None, attention_mask
    if position_bias is not None:
        pairs = _biased(pairs, position_bias)
    scaling, own = query.shape[-1] ** -0.5 if scaling is None else scaling, getattr(module, "scaling", None)
    if isinstance(own, int | float) and own != scaling:  # OPT, Whisper: the query is scaled, its distances too
        query, scaling = query * (scaling / own), own
    radius = getattr(module, "fourier_radius", None)
    if radius is None:
        radius = matched_to(scaling)
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
    # a tensor where the cache has a fixed size: its content ends before its keys do
    at_the_end = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    keep = masks.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if keep is not None:
        keep = keep[:, kv_offset : kv_offset + kv_length].bool()
    else:  # never None, which would leave it to a layer whether later keys are hidden
        keep = torch.ones(batch_size, kv_length, dtype=torch.bool, device=options.get("device", "cpu"))
    # some models change the mask of pairs themselves, and say so by "no skip"
    if mask_function is masks.causal_mask_function and at_the_end and options.get("allow_is_causal_skip", True):
        return keep
    if mask_function is masks.bidirectional_mask_function:
        return keep[:, None, None]
    options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return masks.sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, config=config, **options
    )  # fmt: skip


# encoders that run an attention of their own beside decoders that do not
PARTLY_OWN = ("longt5", "bigbird_pegasus", "pegasus_x")


def _refusing_own(choose: Callable) -> Callable:
    """PreTrainedModel's choice of an attention, which takes every registered name, also for a model that goes on to run
    an attention of its own (DeBERTa, XLM, ...), or takes no mask for "all visible" and leaks the future (BLOOM)."""

    @functools.wraps(choose)
    def get_correct_attn_implementation(model, requested_attention, *arguments, **options):
        partly = model.config.model_type in PARTLY_OWN and not getattr(model.config, "is_decoder", False)
        if requested_attention == "fourier" and (partly or not model._can_set_attn_implementation()):
            own = "has an attention of its own, which transformers cannot replace"
            raise SetupError(f"{model.config.model_type} {own}: use a model such as gpt2, llama or bert")
        return choose(model, requested_attention, *arguments, **options)

    return get_correct_attn_implementation


def learn_radius(model: nn.Module, radius: float | None = None, *, per_head: bool = False) -> list[nn.Parameter]:
    """Add a radius that is trained and saved with the model to every Fourier attention layer of a transformers model.

    radius: initial value; None: as sharp as the softmax. Returns the new parameters; exclude them from weight decay.
    """
    return [
        _add_radius(layer, torch.full(
            (_heads(layer), 1) if per_head else (),
            float(matched_to(layer.scaling) if radius is None else radius),
        ))
        for layer in _layers(model).values()
    ]  # fmt: skip


def load_radius(model: nn.Module, folder: Path | str) -> list[nn.Parameter]:
    """Add the learned radii that `model.save_pretrained(folder)` stored, which `from_pretrained` leaves out."""
    saved: dict[str, Tensor] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            saved |= {name: file.get_tensor(name) for name in file.keys() if name.endswith(".fourier_radius")}  # noqa: SIM118
    renamings = [rule for rule in get_model_conversion_mapping(model) if isinstance(rule, WeightRenaming)]
    prefix = f"{getattr(model, 'base_model_prefix', '')}."  # a model with a head has it, its base has not
    layers = {f"{name.removeprefix(prefix)}.fourier_radius": layer for name, layer in _layers(model).items()}
    saved = {rename_source_key(name, renamings, [])[0].removeprefix(prefix): radius for name, radius in saved.items()}
    if saved.keys() != layers.keys():
        found = f"{len(saved.keys() & layers.keys())} of the radii of its {len(layers)} attention layers"
        raise SetupError(f"{folder} has {found}: load the folder of a model with `learn_radius`, or call that instead")
    return [_add_radius(layer, saved[name]) for name, layer in layers.items()]


def _layers(model: nn.Module) -> dict[str, Any]:
    """The Fourier attention layers of a model by name. SetupError where there are none, or they have a radius."""
    name, hint = type(model).__name__, "use a model such as gpt2, llama or bert"
    layers: dict[str, Any] = {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "is_causal") and isinstance(getattr(module, "scaling", None), int | float)
    }
    if not layers:
        raise SetupError(f"{name} has no attention layer with `is_causal` and `scaling`: {hint}")
    other = {layer.config._attn_implementation for layer in layers.values()} - {"fourier"}
    layers = {name: layer for name, layer in layers.items() if layer.config._attn_implementation == "fourier"}
    if not layers:
        build = 'build or load it with attn_implementation="fourier"'
        raise SetupError(f"{name} runs the attention {' and '.join(sorted(other))!r}, which has no radius: {build}")
    if any(hasattr(layer, "fourier_radius") for layer in layers.values()):
        raise SetupError(f"{name} has learned radii already: each layer's is its fourier_radius")
    return layers


def _heads(layer: Any) -> int:
    """The layer's own number of heads: that of the config may be the encoder's alone, or a list, one for each stage."""
    names = "num_heads", "n_heads", "num_attention_heads"
    own = (getattr(layer, name, None) for name in names)
    return next((heads for heads in own if isinstance(heads, int)), layer.config.num_attention_heads)


def _add_radius(layer: Any, start: Tensor) -> nn.Parameter:
    layer.fourier_radius = nn.Parameter(start.to(next(layer.parameters()).device))
    mark(layer, "fourier_radius", no_weight_decay=True)
    return layer.fourier_radius


PreTrainedModel.get_correct_attn_implementation = _refusing_own(PreTrainedModel.get_correct_attn_implementation)
AttentionInterface.register("fourier", fourier_attention_forward)
AttentionMaskInterface.register("fourier", fourier_mask)
