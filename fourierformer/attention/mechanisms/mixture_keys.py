"""Mixtures of keys: every token has two, so that a head can attend to it for two reasons."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Projected
from fourierformer.attention.engines.features import elu_features
from fourierformer.attention.engines.log_kernel import squared_distances
from fourierformer.attention.engines.recurrence import Form
from fourierformer.attention.engines.weighted import WeightedAttention, visible_softmax
from fourierformer.attention.mechanisms.linear import FeatureAttention, FeaturePair
from fourierformer.errors import check_range
from fourierformer.marks import mark

Second = Literal["projection", "shift"]
EPS = 1e-6  # added to the sum of weights, and to sums of features


class TwoKeys(Attention):
    """Two keys per token: the second is a projection of its own, or the first one minus a learned vector per head."""

    def make_second_key(self, second: Second) -> None:
        geometry, self.shift = self.geometry, None
        if second == "projection":
            self.qkv = nn.Linear(geometry.dim, 4 * geometry.dim, bias=geometry.bias)
        else:
            self.shift = nn.Parameter(0.5 * torch.randn(geometry.heads, 1, geometry.head_dim))
            mark(self, "shift", no_weight_decay=True)

    def make_shares(self) -> nn.Parameter:
        """log pi + constant, of both keys in every head."""
        return nn.Parameter(torch.zeros(self.geometry.heads, 2))

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """k of width 2 D: both keys."""
        dim, heads = self.geometry.dim, self.geometry.heads
        if self.shift is not None:
            q, k, v = super().project(x, memory, last)
            return q, torch.cat([k, k - self.shift], dim=-1), v
        q, k, v = (self._split(part) for part in self._projected(x, memory, last, (dim, 2 * dim, dim)))
        return q, torch.cat([k[:, :heads], k[:, heads:]], dim=-1), v


@register("mgk", "every token has two Gaussian keys, mixed by a learned share per head")
class MixtureOfGaussianKeys(TwoKeys, WeightedAttention):
    """w_ij = sum_m pi_m exp(-a_m |q_i - k_j^m|^2 / (2 sqrt(D))), normalised over j; a = (1, sharpness).

    The second key is a projection of its own, or the first one shifted (`second="shift"`). assign="hard": the larger of
    the two kernels in place of the sum, without pi. Differs from the source in pi, which belongs to a head, not to a
    head and position, and in the number of heads, which the source halves.
    """

    rotary_ok = True
    cost, state, source = "3/2 N² C", "3 N C; 2 N C with second=shift", "Nguyen et al. 2022, arXiv 2110.08678"

    def __init__(
        self, geometry: Geometry, *, assign: Literal["soft", "hard"] = "soft", second: Second = "projection",
        sharpness: float = 3.0,
    ):  # fmt: skip
        super().__init__(geometry)
        check_range("attention.sharpness", sharpness, 0, above_low=True)
        self.assign, self.sharpness = assign, sharpness
        self.make_second_key(second)
        self.mixture = self.make_shares() if assign == "soft" else None
        if self.mixture is not None:
            mark(self, "mixture", no_weight_decay=True)

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


@register("mlk", "as mgk in linear time: every token has the features of two keys, mixed by a learned share per head")
class MixtureOfLinearKeys(TwoKeys, FeatureAttention):
    """A_ij = f(q_i).(pi_1 f(k_j^1) + pi_2 f(k_j^2)), divided by its sum over j; f(x) = elu(x) + 1, divided by its sum
    over coordinates.

    Differs from the source in pi and the number of heads, as mgk does, and in a factor 1 / sqrt(D) that it leaves out.
    """

    cost, state, source = "N D C", "C (D + 1)", "Nguyen et al. 2022, arXiv 2110.08678"

    def __init__(self, geometry: Geometry, *, second: Second = "projection", form: Form = "auto"):
        super().__init__(geometry, form)
        self.make_second_key(second)
        self.features, self.mixture = geometry.head_dim, self.make_shares()
        mark(self, "mixture", no_weight_decay=True)

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        shares = self.mixture.to(q.dtype).softmax(-1)[..., None, None]
        first, second = (_shared_out(key) for key in k.chunk(2, dim=-1))
        return FeaturePair(_shared_out(q), shares[:, 0] * first + shares[:, 1] * second, {"eps": EPS})


def _shared_out(x: Tensor) -> Tensor:
    features = elu_features(x)
    return features / (features.sum(-1, keepdim=True) + EPS)
