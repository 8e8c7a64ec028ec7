"""Synthesizer: weights from the query's token alone, or from positions alone, instead of pairs of tokens."""

from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Projected
from fourierformer.attention.engines.weighted import WeightedAttention, visible_softmax


@register("synthesizer", "weights without keys: from the query's token alone, or learned per pair of positions")
class Synthesizer(WeightedAttention):
    """dense: softmax(relu(q_i) W_h) with W_h (D, length), a two-layer network on the token.
    random: softmax(R_h) with a learned (length, length) per head, the same for every input.

    There is no projection of keys, and with `kind=random` none of queries. Column j belongs to position j.
    """

    rotary_ok = "it has no keys"
    longer_ok = False
    qk_norm_ok = "it has no keys"
    cross_ok = "its weights belong to positions of one sequence, whatever the tokens are"
    state, source = "N C", "Tay et al. 2020, arXiv 2005.00743"

    def __init__(self, geometry: Geometry, *, kind: Literal["dense", "random"] = "dense"):
        super().__init__(geometry)
        self.kind = kind
        rows, dim = (geometry.head_dim, geometry.dim) if kind == "dense" else (geometry.length, 0)
        self.qkv = nn.Linear(geometry.dim, dim + geometry.dim, bias=geometry.bias)
        # logits of the order of 0.1: weights are nearly uniform, as those of softmax before training
        self.table = nn.Parameter(0.1 * torch.randn(geometry.heads, rows, geometry.length))

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """q of width D, or 0 with `kind=random`; k of width 0."""
        heads, dim = self.geometry.heads, self.geometry.dim
        q, _, v = self._projected(x, memory, last, (dim if self.kind == "dense" else 0, 0, dim))
        q = self._split(q) if self.kind == "dense" else q[:, None].expand(-1, heads, -1, -1)
        v = self._split(v)
        return q, v[..., :0], v

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        queries, keys = q.shape[-2], k.shape[-2]
        table = self.table.to(q.dtype)
        if self.kind == "dense":
            logits = q.relu() @ table[..., :keys]
        else:
            logits = table[:, keys - queries : keys, :keys].expand(len(q), -1, -1, -1)
        return visible_softmax(logits, visible)
