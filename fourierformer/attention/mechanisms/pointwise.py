"""Weights that are functions of each logit, not normalised by the sum: sigmoid, ReLU, and a softmax shifted to 0."""

import math
from typing import Literal

from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits
from fourierformer.errors import check_range

SMALLEST_SUM = 1e-8  # of softpick's weights, relative to those of logit 0


@register("sigmoid", "each key is weighed by itself, by a sigmoid of its logit: weights do not compete")
class Sigmoid(WeightedAttention):
    """W_ij = sigmoid(q_i.k_j / sqrt(D) + b), b = -log(length) (`bias="auto"`) or a number; no normalisation.

    Each weight is a softmax over that key and a null key of logit -b. At logits of 0 and n visible keys a row sums to
    n / (length + 1): early tokens of a causal model have small outputs at first.
    """

    rotary_ok = True
    source = "Ramapuram et al. 2024, arXiv 2409.04431"

    def __init__(self, geometry: Geometry, *, bias: float | Literal["auto"] = "auto"):
        super().__init__(geometry)
        self.bias = -math.log(geometry.length) if bias == "auto" else float(bias)

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        return (scaled_logits(q, k) + self.bias).sigmoid().masked_fill(~visible, 0.0)


@register("relu_attention", "ReLU of the logits, divided by the length: weights of exactly 0, no sum over keys")
class ReluAttention(WeightedAttention):
    """W_ij = relu(q_i.k_j / sqrt(D))^power / n with n the model's longest sequence, or the number of visible keys."""

    rotary_ok = True
    source = "Wortsman et al. 2023, arXiv 2309.08586"

    def __init__(self, geometry: Geometry, *, power: int = 1, divide: Literal["length", "visible"] = "length"):
        super().__init__(geometry)
        check_range("attention.power", power, 1)
        self.power, self.divide = power, divide

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        weights = scaled_logits(q, k).relu().pow(self.power).masked_fill(~visible, 0.0)
        if self.divide == "length":
            return weights / self.geometry.length
        return weights / visible.sum(-1, keepdim=True).clamp_min(1)


@register("softpick", "softmax shifted so that a logit of 0 means weight 0; negative logits only in the sum")
class Softpick(WeightedAttention):
    """W_ij = relu(e^l_ij - 1) / sum_j |e^l_ij - 1|, l = q.k / sqrt(D). Rows sum to at most 1, to 0 where all l < 0."""

    rotary_ok = True
    source = "Zuhri et al. 2025, arXiv 2504.20966"

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        logits = scaled_logits(q, k).masked_fill(~visible, 0.0)  # weight 0
        # e^(l - top) - e^(-top) with top >= 0: neither overflows, also where all logits are far below 0
        top = logits.detach().amax(-1, keepdim=True).clamp_min(0)
        above = (logits - top).exp() - (-top).exp()
        return above.relu() / (above.abs().sum(-1, keepdim=True) + SMALLEST_SUM * (-top).exp())
