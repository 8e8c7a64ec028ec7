"""Kernels of compact support, 0 beyond a bandwidth: Epanechnikov and its powers, sparsemax and entmax."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.evaluation import EvaluationMean
from fourierformer.attention.engines.log_kernel import LogKernel
from fourierformer.attention.engines.weighted import WeightedAttention
from fourierformer.errors import check_range
from fourierformer.kernels.first_derivatives import differentiable_once


@register("epanechnikov", "1 - |q - k|²/h² or 0, each query's h such that weights sum to 1: exact zeros by content")
@register("biweight", "as epanechnikov, squared", power=2)
@register("triweight", "as epanechnikov, to the third power", power=3)
@register("sparsemax", "the projection of the logits on the simplex: many weights are exactly 0", logits="dot", power=1)
@register("entmax", "between softmax and sparsemax (alpha = 1.5): weights may be exactly 0", logits="dot", power=2)
class Compact(WeightedAttention):
    """W_ij = [1 - |q_i - k_j|^2 / h^2]_+^power, normalised; logits="dot": of q.k / sqrt(D) instead.

    With l = -|q - k|^2 / (2 s) or the logit, s = sqrt(D) at first, and [x]_+ = max(x, 0):

    adaptive: W = [l / power - tau_i]_+^power, tau_i such that the row sums to 1: alpha-entmax with alpha = 1 + 1/power.
        On distances it is the kernel above, already normalised, with h_i^2 = -2 s power tau_i.
    nearest: [1 + (l - max_j l) / power]_+^power / sum: at least the nearest key has weight.
    fixed: [1 + l / power]_+^power / sum: h^2 = 2 s power; a query with no key inside h gets 0.

    With power -> infinity all three become the Gaussian, or softmax. `learn_bandwidth`: s is learned per head.
    `diagnostics` reports the mean number of keys with weight, of the last queries in an evaluation.
    """

    rotary_ok = True
    cost = "N² C + 26 N² H"
    source = "Martins and Astudillo 2016, arXiv 1602.02068; Peters et al. 2019, arXiv 1905.05702"

    def __init__(
        self, geometry: Geometry, *, power: int = 1, bandwidth: Literal["adaptive", "nearest", "fixed"] = "adaptive",
        logits: Literal["distance", "dot"] = "distance", learn_bandwidth: bool = False,
    ):  # fmt: skip
        super().__init__(geometry)
        check_range("attention.power", power, 1)
        self.power, self.bandwidth = power, bandwidth
        self.log_kernel = LogKernel("dot" if logits == "dot" else "gaussian", bandwidth=math.sqrt(geometry.head_dim))
        self.log_scale = nn.Parameter(torch.zeros(geometry.heads)) if learn_bandwidth else None
        self.support = EvaluationMean()

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        scaled = self.log_kernel(q, k) / self.power
        if self.log_scale is not None:
            scaled = scaled * (-self.log_scale).exp().to(q.dtype)[:, None, None]
        if self.bandwidth == "adaptive":
            return entmax(scaled, visible, self.power)
        if self.bandwidth == "nearest":
            scaled = scaled - scaled.masked_fill(~visible, -math.inf).amax(-1, keepdim=True).clamp_min(-1e30)
        return normalised((1 + scaled).masked_fill(~visible, 0.0).relu(), self.power)

    def watch(self, weights: Tensor) -> None:
        self.support.add((weights > 0).sum(-1).to(weights.dtype))

    def diagnostics(self) -> dict[str, float]:
        support = self.support.value()
        return {} if math.isnan(support) else {"support": support}


def normalised(inside: Tensor, power: int) -> Tensor:
    """inside^power / sum; 0 where all are 0. Relative to the largest of a row, so that no power underflows."""
    largest = inside.detach().amax(-1, keepdim=True).clamp_min(torch.finfo(inside.dtype).tiny)
    powers = (inside / largest).pow(power)
    return powers / powers.sum(-1, keepdim=True).clamp_min(torch.finfo(inside.dtype).tiny)


def entmax(scaled: Tensor, visible: Tensor, power: int) -> Tensor:
    """[scaled - tau]_+^power over the visible keys with tau such that each row sums to 1; 0 for a row without any."""
    without_keys = ~visible.any(-1, keepdim=True)
    scaled = scaled.masked_fill(~(visible | without_keys), -math.inf)
    weights: Tensor = Entmax.apply(scaled, power)
    return weights.masked_fill(without_keys, 0.0)


class Entmax(torch.autograd.Function):
    """tau by halving its interval. With u = scaled - max, the largest weight is between 1 / keys and 1, so that tau is
    between -1 and -keys^(-1/power)."""

    @staticmethod
    def forward(ctx: Any, scaled: Tensor, power: int) -> Tensor:
        scaled = scaled - scaled.amax(-1, keepdim=True)
        low = torch.full_like(scaled[..., :1], -1.0)
        width = 1 - scaled.shape[-1] ** (-1 / power)
        for _ in range(50 if scaled.dtype == torch.float64 else 26):
            width /= 2
            middle = low + width
            low = torch.where((scaled - middle).clamp_min_(0).pow_(power).sum(-1, keepdim=True) >= 1, middle, low)
        weights = (scaled - low).clamp_min_(0).pow_(power)
        weights = weights / weights.sum(-1, keepdim=True)
        ctx.save_for_backward(weights)
        ctx.power = power
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """dW = power diag(t) - power t t^T / sum t, t = W^(1 - 1/power), since the sum of the row stays 1."""
        (weights,) = ctx.saved_tensors
        with torch.no_grad():
            slope = weights.pow(1 - 1 / ctx.power) * (weights > 0)
            mean = (grads[0] * slope).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
            gradient = ctx.power * slope * (grads[0] - mean)
        return *differentiable_once([gradient], grads[0], weights), None
