"""Robust kernel density attention: keys that are outliers among the keys lose weight."""

import math
from typing import Literal

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, to_float32, visible_keys
from fourierformer.attention.engines.features import unit_norm
from fourierformer.attention.engines.log_kernel import squared_distances
from fourierformer.errors import check_range

SMALLEST = 1e-24  # squared distance in the RKHS


@register("rkde", "as kde with a weight per key, smaller for outliers among the keys (iteratively reweighted)")
class RobustKde(Attention):
    """y_i = sum_j w_j K(q_i, k_j) v_j / sum_j u_j K(q_i, k_j), K(a, b) = exp(-|a - b|^2 / sqrt(D)), keys of unit norm.

    u minimises sum_j loss(r_j), r_j the distance in the RKHS of key j to the weighted mean of the visible keys:
    r_j^2 = 1 - 2 sum_l u_l K_jl + sum_lm u_l u_m K_lm, u_j ~ loss'(r_j) / r_j, from equal weights, `iterations` times.
    w is the same of [key, value] (`joint`), else w = u. Huber: min(1, a / r). Hampel: 1 up to a, a / r up to 2 a, then
    falling to 0 at 3 a; keys with u_j = 0 are left out of both sums, since w_j / u_j has no bound.

    In a causal model every query has weights of its own, over the keys that it sees. No maps: w depends on the values.
    Differs from the released code, whose image model has +2 in place of -2, and whose language model keeps all weights
    equal.
    """

    rotary_ok = True
    partial_queries = cross_ok = padding_ok = True
    cost, state, source = "N² C + iterations N³ H", "2 N C", "Han et al. 2023, arXiv 2210.05794"

    def __init__(
        self, geometry: Geometry, *, loss: Literal["huber", "hampel"] = "huber", a: float = 0.2, iterations: int = 1,
        joint: bool = True,
    ):  # fmt: skip
        super().__init__(geometry)
        check_range("attention.a", a, 0, above_low=True)
        check_range("attention.iterations", iterations, 1)
        self.loss, self.a, self.iterations, self.joint = loss, a, iterations, joint

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        visible = visible_keys(q, k, causal=self.geometry.causal and not cross, keep=keep)
        with torch.autocast(q.device.type, enabled=False):
            q, k, values = to_float32(q, unit_norm(k), v)
            scale = -1 / math.sqrt(q.shape[-1])
            of_keys = self._weights(k, visible, scale)
            logits = (scale * squared_distances(q, k)).masked_fill(of_keys == 0, -math.inf)
            # relative to the largest kernel, which cancels
            kernel = (logits - logits.detach().amax(-1, keepdim=True).clamp_min(-1e30)).exp()
            of_pairs = self._weights(torch.cat([k, values], dim=-1), visible, scale) if self.joint else of_keys
            total = (of_keys * kernel).sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
            return ((of_pairs * kernel / total) @ values).to(v.dtype)

    def _weights(self, points: Tensor, visible: Tensor, scale: float) -> Tensor:
        """u, (B, H, N or 1, M): 0 for keys that are not visible."""
        kernel = (scale * squared_distances(points, points)).exp()
        count = visible.sum(-1, keepdim=True).clamp_min(1)
        equal = (visible / count).to(points.dtype).expand(*points.shape[:2], -1, -1)
        weights = equal
        for _ in range(self.iterations):
            near = weights @ kernel
            squares = 1 - 2 * near + (near * weights).sum(-1, keepdim=True)
            weights = self._influence(squares.clamp_min(SMALLEST).sqrt()) * visible
            total = weights.sum(-1, keepdim=True)
            weights = torch.where(total > 0, weights / total.clamp_min(1e-30), equal)
        return weights

    def _influence(self, r: Tensor) -> Tensor:
        """loss'(r) / r."""
        huber = (self.a / r).clamp_max(1)
        if self.loss == "huber":
            return huber
        return huber * ((3 * self.a - r) / self.a).clamp(0, 1)  # 1 up to 2 a, 0 from 3 a
