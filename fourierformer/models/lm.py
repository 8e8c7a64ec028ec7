"""The word language model of the paper, a 16-layer post-LN transformer with adaptive input and adaptive softmax.

Shapes and initialisation follow the authors' code (the Transformer-XL code base without memory); only the attention is
replaced. Parameters at V = 267,735, cut-offs 20k/40k/200k, dim 128, 8 heads, inner 2,048, softmax attention:
layers 16 x (4*128^2 + 2*128*2048 + 2048 + 128 + 4*128) = 9,480,192; embedding 34,270,080; output bias 267,735;
clusters 3*128 + 3 = 387; together 44,018,394.
"""

import math
from collections.abc import Callable, Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import Attention, Geometry
from fourierformer.attention.base import State, new_carry
from fourierformer.attention.switches import Carry
from fourierformer.marks import mark
from fourierformer.models.adaptive import TiedAdaptiveSoftmax
from fourierformer.models.config import LMConfig, Seq2SeqConfig
from fourierformer.models.dropout import dropout_layer


def reversed_sinusoids(length: int, dim: int) -> Tensor:
    """(length, dim) position embedding [sin | cos] (not interleaved) with REVERSED ids: the last token has position 0.

    So the last token has position 0 in windows of any length, in training and in sliding evaluation. Angles of hundreds
    need float32's digits, also where torch's default is bfloat16, as while transformers loads a model.
    """
    wide = torch.promote_types(torch.get_default_dtype(), torch.float32)
    position = torch.arange(length - 1, -1, -1.0, dtype=wide)
    frequency = 10000 ** (-torch.arange(0, dim, 2.0, dtype=wide) / dim)
    angle = position[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(torch.get_default_dtype())


def set_positions(model: nn.Module, kind: str, sinusoids: Tensor) -> None:
    """model.positions (length, dim), which is added to the embedding; None for rotary positions and none."""
    if kind == "learned":
        model.positions = nn.Parameter(0.02 * torch.randn(sinusoids.shape))
        mark(model, "positions", no_weight_decay=True)
    else:
        model.register_buffer("positions", sinusoids if kind == "sinusoid" else None, persistent=False)


class SwiGLU(nn.Module):
    """W_3 (silu(W_1 x) * W_2 x) without biases (Shazeer 2020, arXiv 2002.05202), with dropout after both halves. It is
    2/3 as wide as `inner`, rounded to a multiple of 8, so that it has about as many parameters as two matrices."""

    def __init__(self, config: LMConfig | Seq2SeqConfig):
        super().__init__()
        dim, width = config.dim, max(8, 8 * round(2 * config.inner / 3 / 8))
        self.wider, self.narrower = nn.Linear(dim, 2 * width, bias=False), nn.Linear(width, dim, bias=False)
        self.dropout = dropout_layer(config)

    def forward(self, x: Tensor) -> Tensor:
        gate, linear = self.wider(x).chunk(2, dim=-1)
        return self.dropout(self.narrower(self.dropout(F.silu(gate) * linear)))


def feed_forward(config: LMConfig | Seq2SeqConfig) -> nn.Module:
    """The second half of a layer: dim -> inner -> dim, with dropout after both."""
    if config.feed_forward == "swiglu":
        return SwiGLU(config)
    wider, narrower = nn.Linear(config.dim, config.inner), nn.Linear(config.inner, config.dim)
    return nn.Sequential(wider, nn.ReLU(), dropout_layer(config), narrower, dropout_layer(config))


def norm_layer(config: LMConfig | Seq2SeqConfig) -> nn.Module:
    """LayerNorm, or x / sqrt(mean(x^2) + 1e-6) times a gain (Zhang and Sennrich 2019, arXiv 1910.07467)."""
    return nn.RMSNorm(config.dim, eps=1e-6) if config.norm_kind == "rms" else nn.LayerNorm(config.dim)


def final_norm(config: LMConfig | Seq2SeqConfig) -> nn.Module:
    """After the last layer of a stack with norm=pre."""
    return norm_layer(config) if config.norm == "pre" else nn.Identity()


class TransformerLayer(nn.Module):
    """post-LN: LN(h + drop(attention(h))), then LN(h + FF(h)). pre-LN: h + drop(attention(LN(h))), then h + FF(LN(h)).

    Causal or not, as its attention is.
    """

    def __init__(self, config: LMConfig | Seq2SeqConfig, attention: Attention):
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = attention
        self.attention_norm = norm_layer(config)
        self.dropout = dropout_layer(config)
        self.feed_forward = feed_forward(config)
        self.feed_forward_norm = norm_layer(config)

    def forward(
        self, h: Tensor, last: int | None = None, keep: Tensor | None = None, carry: Carry | None = None
    ) -> Tensor:
        """(B, N, dim) -> (B, N, dim), or the `last` positions only. keep (B, N): False for padding."""
        residual = h if last is None else h[:, -last:]
        mixed = self.attention(self._before_attention(h), last=last, keep=keep, carry=carry)
        return self._after_attention(residual, mixed)

    def step(self, h: Tensor, state: State, position: int, carry: Carry | None = None) -> tuple[Tensor, State]:
        """One more token, (B, 1, dim): equal to that position of `forward` over all tokens so far."""
        mixed, state = self.attention.step(self._before_attention(h), state, position, carry)
        return self._after_attention(h, mixed), state

    def _before_attention(self, h: Tensor) -> Tensor:
        return self.attention_norm(h) if self.pre_norm else h

    def _after_attention(self, residual: Tensor, mixed: Tensor) -> Tensor:
        h = residual + self.dropout(mixed)
        if self.pre_norm:
            return h + self.feed_forward(self.feed_forward_norm(h))
        h = self.attention_norm(h)
        return self.feed_forward_norm(h + self.feed_forward(h))


def start_all(layers: Iterable[nn.Module], batch: int) -> list[State] | None:
    """The attention's state in every layer before the first token; None where it has none of constant size."""
    states = [cast("Attention", layer.attention).start(batch) for layer in layers]
    found = [state for state in states if state is not None]
    return found if len(found) == len(states) else None


def carry_of(layers: nn.ModuleList) -> Carry | None:
    """What one forward pass carries from layer to layer of a stack."""
    return new_carry(cast("Attention", layers[0].attention))


class TextModel(nn.Module):
    """Embedding, layers and tied output of a language model. `more_ids`: ids of inputs beyond the vocabulary."""

    positions: Tensor | None  # (length, dim), what is added to the embedding in the last positions of a window

    def __init__(
        self, config: LMConfig, vocab_size: int, cutoffs: list[int], attention: Callable[[Geometry], Attention],
        seed: int = 0, *, more_ids: int = 0,
    ):  # fmt: skip
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.embedding = nn.Embedding(vocab_size + more_ids, config.dim)
        self.dropout = dropout_layer(config)
        geometries = (config.geometry(i, seed) for i in range(config.layers))
        self.layers = nn.ModuleList(TransformerLayer(config, attention(geometry)) for geometry in geometries)
        self.final_norm = final_norm(config)
        self.output = TiedAdaptiveSoftmax(vocab_size, config.dim, cutoffs)
        set_positions(self, config.position, reversed_sinusoids(config.length, config.dim))
        self.apply(initialise)

    def hidden(self, tokens: Tensor, last: int | None = None, *, keep: Tensor | None = None) -> Tensor:
        """The last layer's output: token ids (B, N) -> (B, N, dim), or (B, last, dim), computed by the last layer for
        those positions only. keep (B, N): False for padding, on the left."""
        h = self.dropout(self._embedded(tokens, slice(-tokens.shape[1], None)))
        carry = carry_of(self.layers)
        for layer in self.layers[:-1]:
            h = layer(h, keep=keep, carry=carry)
        return self.dropout(self.final_norm(self.layers[-1](h, last, keep, carry)))

    def _embedded(self, tokens: Tensor, place: slice) -> Tensor:
        """(B, N) -> (B, N, dim). place: the positions of the tokens in a full window."""
        h = self.embedding(tokens) * math.sqrt(self.config.dim)
        return h if self.positions is None else h + self.positions[place]

    def compile_blocks(self, **options) -> None:
        """Apply torch.compile layer by layer: all have the same shapes, so that one compilation is enough."""
        for layer in self.layers:
            layer.compile(**options)


class WordLM(TextModel):
    def forward(
        self, tokens: Tensor, targets: Tensor, rare: list[Tensor] | None = None, *, mean: bool = False
    ) -> Tensor:
        """-log p(target): tokens (B, N), targets (B, n) for the last n <= N positions -> (B * n,) float32, or the mean.

        `rare` is output.rare_places(targets), where the caller computed it before the transfer to the GPU.
        """
        last = targets.shape[1] if targets.shape[1] < tokens.shape[1] else None
        hidden = self.hidden(tokens, last).flatten(0, 1)
        loss = self.output.mean_nll if mean else self.output.nll
        return loss(hidden, targets.flatten(), self.embedding.weight, rare)

    def next_token(self, tokens: Tensor) -> Tensor:
        """log p of every word as the next token: (B, N) -> (B, V)."""
        if self.positions is not None and tokens.shape[1] > len(self.positions):
            raise ValueError(
                f"the model has positions for {len(self.positions)} tokens, got {tokens.shape[1]}: give the last"
            )
        return self.output.log_probabilities(self.hidden(tokens, last=1)[:, 0], self.embedding.weight)

    def start(self, batch: int) -> list[State] | None:
        """The state of every layer before the first token; None where the attention has none of constant size."""
        return start_all(self.layers, batch)

    def step(self, token: Tensor, position: int, states: list[State]) -> tuple[Tensor, list[State]]:
        """log p of the next token (B, V) after `token` (B,) at this position of a full window, and the next states."""
        h = self._embedded(token[:, None], slice(position, position + 1))
        after, carry = [], carry_of(self.layers)
        for layer, state in zip(cast("Iterable[TransformerLayer]", self.layers), states, strict=True):
            h, state = layer.step(h, state, position, carry)
            after.append(state)
        return self.output.log_probabilities(self.final_norm(h)[:, 0], self.embedding.weight), after


def initialise(module: nn.Module) -> None:
    """Weights N(0, 0.02), biases 0, weights of norms N(1, 0.02): the authors' initialisation."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        nn.init.normal_(module.weight, mean=1.0, std=0.02)
        if isinstance(module, nn.LayerNorm):
            nn.init.zeros_(module.bias)
    elif isinstance(module, TiedAdaptiveSoftmax) and module.clusters:
        nn.init.normal_(module.cluster_weight, std=0.02)
