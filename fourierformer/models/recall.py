"""A model for associative recall: one attention layer, or a few, between an embedding and its transpose.

Without positions and without feed-forward by default, so that the answer can only come through attention.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import Attention, Geometry
from fourierformer.attention.switches import Carry
from fourierformer.data.recall.sequences import NOTHING, Sequences
from fourierformer.models.config import RecallConfig
from fourierformer.models.lm import carry_of


class RecallLayer(nn.Module):
    """h + attention(LN(h)); with `inner` then h + FF(LN(h))."""

    def __init__(self, config: RecallConfig, attention: Attention):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(config.dim), attention
        self.feed_forward = None
        if config.inner:
            wider, narrower = nn.Linear(config.dim, config.inner), nn.Linear(config.inner, config.dim)
            self.feed_forward = nn.Sequential(nn.LayerNorm(config.dim), wider, nn.GELU(), narrower)

    def forward(self, h: Tensor, carry: Carry | None = None) -> Tensor:
        h = h + self.attention(self.attention_norm(h), carry=carry)
        return h if self.feed_forward is None else h + self.feed_forward(h)


class RecallModel(nn.Module):
    """A token is embedded as e(token) + scale * e(companion), with a scale per channel. Where both may be the same id
    (a stream), the scale begins at random values, so that their order can be seen; else at 1."""

    def __init__(
        self,
        config: RecallConfig,
        vocabulary: int,
        length: int,
        attention: Callable[[Geometry], Attention],
        *,
        same_ids: bool = False,
        key_dimension: int | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary, config.dim)
        self.companion_scale = nn.Parameter(torch.randn(config.dim) if same_ids else torch.ones(config.dim))
        self.key_projection = nn.Linear(key_dimension, config.dim, bias=False) if key_dimension else None
        geometries = (config.geometry(length, layer, seed) for layer in range(config.layers))
        self.layers = nn.ModuleList(RecallLayer(config, attention(geometry)) for geometry in geometries)
        self.norm = nn.LayerNorm(config.dim)
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(config.dim))

    def forward(self, batch: Sequences) -> Tensor:
        """Logits of every id at the positions of the queries: (B, Q, vocabulary)."""
        return F.linear(self.norm(self.hidden(batch)), self.embedding.weight)

    def hidden(self, batch: Sequences) -> Tensor:
        """The output of the last layer at the positions of the queries: (B, Q, dim)."""
        carried = self.embedding(batch.companions) * (batch.companions != NOTHING)[..., None]
        h = carried * self.companion_scale
        if batch.vectors is None:
            h = h + self.embedding(batch.tokens)
        else:
            assert self.key_projection is not None
            h = h + self.key_projection(batch.vectors)
        carry = carry_of(self.layers)
        for layer in self.layers:
            h = layer(h, carry)
        return h.take_along_dim(batch.places[..., None], 1)

    def compile_blocks(self, **options) -> None:
        for layer in self.layers:
            layer.compile(**options)
