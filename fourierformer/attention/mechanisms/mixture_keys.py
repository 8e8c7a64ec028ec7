"""Mixtures of Gaussian keys: every token has two keys, so that a head can attend to it for two reasons."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Projected
from fourierformer.attention.engines.log_kernel import squared_distances
from fourierformer.attention.engines.weighted import WeightedAttention, visible_softmax
from fourierformer.errors import check_range
from fourierformer.marks import mark


@register("mgk", "every token has two Gaussian keys, mixed by a learned share per head")
class MixtureOfGaussianKeys(WeightedAttention):
    """w_ij = sum_m pi_m exp(-a_m |q_i - k_j^m|^2 / (2 sqrt(D))), normalised over j; a = (1, sharpness).

    The second key is a projection of its own, or the first one shifted (`second="shift"`). assign="hard": the larger of
    the two kernels in place of the sum, without pi. Differs from the source in pi, which belongs to a head, not to a
    head and position, and in the number of heads, which the source halves.
    """

    rotary_ok = True
    cost, state, source = "2 N² C", "3 N C; 2 N C with second=shift", "Nguyen et al. 2022, arXiv 2110.08678"

    def __init__(
        self, geometry: Geometry, *, assign: Literal["soft", "hard"] = "soft",
        second: Literal["projection", "shift"] = "projection", sharpness: float = 3.0,
    ):  # fmt: skip
        super().__init__(geometry)
        check_range("attention.sharpness", sharpness, 0, above_low=True)
        self.assign, self.sharpness = assign, sharpness
        self.shift = None
        if second == "projection":
            self.qkv = nn.Linear(geometry.dim, 4 * geometry.dim, bias=geometry.bias)
        else:
            self.shift = nn.Parameter(0.5 * torch.randn(geometry.heads, 1, geometry.head_dim))
            mark(self, "shift", no_weight_decay=True)
        self.mixture = nn.Parameter(torch.zeros(geometry.heads, 2)) if assign == "soft" else None  # log pi + constant
        if self.mixture is not None:
            mark(self, "mixture", no_weight_decay=True)

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """k of width 2 D: both keys."""
        dim, heads = self.geometry.dim, self.geometry.heads
        if self.shift is not None:
            q, k, v = super().project(x, memory, last)
            return q, torch.cat([k, k - self.shift], dim=-1), v
        q, k, v = (self._split(part) for part in self._projected(x, memory, last, (dim, 2 * dim, dim)))
        return q, torch.cat([k[:, :heads], k[:, heads:]], dim=-1), v

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        scale = -1 / (2 * math.sqrt(q.shape[-1]))
        kernels = [
            sharpness * scale * squared_distances(q, key)
            for sharpness, key in zip((1, self.sharpness), k.chunk(2, dim=-1), strict=True)
        ]
        if self.mixture is None:
            return visible_softmax(torch.maximum(*kernels), visible)
        shares = self.mixture.to(q.dtype).log_softmax(-1)[..., None, None]
        return visible_softmax(torch.logaddexp(kernels[0] + shares[:, 0], kernels[1] + shares[:, 1]), visible)
