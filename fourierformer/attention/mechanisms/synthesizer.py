"""Synthesizer: weights from the query's token alone, or from positions alone, instead of pairs of tokens."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Projected
from fourierformer.attention.engines.weighted import WeightedAttention, visible_softmax

RANK = 8  # of kind=factorized_random, as in the paper


@register("synthesizer", "weights without keys: from the query's token alone, or learned per pair of positions")
class Synthesizer(WeightedAttention):
    """dense: softmax(relu(q_i) W_h) with W_h (D, length), a two-layer network on the token.
    random: softmax(R_h) with a learned (length, length) per head, the same for every input.
    factorized_dense: logits A_{i, j mod a} B_{i, floor(j / a)}, A = relu(q) W_h, B = relu(q) U_h with W_h (D, a) and
    U_h (D, b), a and b about sqrt(length).
    factorized_random: R_h = S_h T_h^T with S_h and T_h (length, 8).

    There is no projection of keys, and with the random kinds none of queries. Column j belongs to position j.
    """

    rotary_ok = "it has no keys"
    longer_ok = False
    qk_norm_ok = "it has no keys"
    cross_ok = "its weights belong to positions of one sequence, whatever the tokens are"
    state, source = "N C", "Tay et al. 2020, arXiv 2005.00743"

    def __init__(
        self, geometry: Geometry, *,
        kind: Literal["dense", "random", "factorized_dense", "factorized_random"] = "dense",
    ):  # fmt: skip
        super().__init__(geometry)
        self.factorized, self.by_token = kind.startswith("factorized"), kind.endswith("dense")
        length, rows = geometry.length, geometry.head_dim if self.by_token else geometry.length
        self.qkv = nn.Linear(geometry.dim, (1 + self.by_token) * geometry.dim, bias=geometry.bias)
        # logits of the order of 0.1: weights are nearly uniform, as those of softmax before training
        if not self.factorized:
            self.table = nn.Parameter(0.1 * torch.randn(geometry.heads, rows, length))
            return
        first = math.isqrt(length - 1) + 1 if self.by_token else RANK
        second = -(-length // first) if self.by_token else RANK
        self.first, self.second = (
            nn.Parameter(math.sqrt(0.1) * torch.randn(geometry.heads, rows, width)) for width in (first, second)
        )

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """q of width D, or 0 with the random kinds; k of width 0."""
        heads, dim = self.geometry.heads, self.geometry.dim
        q, _, v = self._projected(x, memory, last, (dim if self.by_token else 0, 0, dim))
        q = self._split(q) if self.by_token else q[:, None].expand(-1, heads, -1, -1)
        v = self._split(v)
        return q, v[..., :0], v

    def state_size(self, tokens: int) -> int:
        """Values alone."""
        return tokens * self.geometry.dim

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        logits = self._factorized_logits if self.factorized else self._logits
        return visible_softmax(logits(q, k.shape[-2]).expand(len(q), -1, -1, -1), visible)

    def _logits(self, q: Tensor, keys: int) -> Tensor:
        table = self.table.to(q.dtype)[..., :keys]
        return q.relu() @ table if self.by_token else table[:, keys - q.shape[-2] : keys]

    def _factorized_logits(self, q: Tensor, keys: int) -> Tensor:
        first, second = self.first.to(q.dtype), self.second.to(q.dtype)
        if not self.by_token:
            return first[:, keys - q.shape[-2] : keys] @ second[:, :keys].mT
        j = torch.arange(keys, device=q.device)
        return (q.relu() @ first)[..., j % first.shape[-1]] * (q.relu() @ second)[..., j // first.shape[-1]]
