"""Fourier attention over pairs of coordinates: frequencies in a disc instead of a square."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Keep, to_float32
from fourierformer.attention.engines.log_kernel import LogKernel, check_pairs
from fourierformer.attention.engines.weighted import WATCHED_SEQUENCES, of_last_query, visible_softmax
from fourierformer.attention.mechanisms.fourier import check_power, initial_radius
from fourierformer.attention.mechanisms.null_key import NullKeyAttention
from fourierformer.errors import check_range
from fourierformer.kernels.sinc import sinc_attention, why_not_compiled

EQUAL_CURVATURE = math.sqrt(4 / 3)  # of 2 J1(x) / x = 1 - x^2 / 8 and sinc(x) = 1 - x^2 / 6


@register("fourier_disc", "the paper's kernel with discs in frequency: invariant to rotations of pairs of coordinates")
class FourierDisc(NullKeyAttention):
    """w_ij = prod_m (2 J1(R r_m) / (R r_m))^power, r_m the length of q_i - k_j in the plane of coordinates 2m, 2m + 1.

    The Fourier integral estimator (FourierFormer, Definition 1) integrates exp(i w.u) over |w_d| <= R, a square in each
    plane, which gives sinc products. Over the disc |w| <= R it gives pi R^2 2 J1(R r) / (R r), with the Bessel function
    J1: a function of the distance in the plane, so that rotary positions make it a function of relative positions,
    which a product of sincs is not. `paper` and `matched` are sqrt(4/3) times the radii of `fourier`: equal curvature
    at 0.

    By the compiled kernel on a CPU, else by explicit matrices in plain torch, at the cost of one Bessel function per
    query, key and plane.
    """

    rotary_ok = True
    cost, source = "N² C / 2 Bessel", "ours, from Nguyen et al. 2022, arXiv 2206.00206"

    def __init__(
        self, geometry: Geometry, *, power: int = 4, radius: float | Literal["paper", "matched"] = "matched",
        eps: float = 1e-6,
    ):  # fmt: skip
        super().__init__(geometry)
        check_pairs("fourier_disc", geometry.head_dim)
        check_power(power, allow_negative=False, backend="auto")
        check_range("attention.eps", eps, 0)
        self.power, self.eps = power, eps
        start = initial_radius(radius, geometry, power, EQUAL_CURVATURE)
        self.log_kernel = LogKernel("disc", radius=start, power=power)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        if why_not_compiled(q, self.power):
            return super().mix(q, k, v, x, keep=keep, cross=cross)
        if not self.training and q.shape[-2] > 1:
            self._watch_last_query(q, k, None if cross else keep, keep)
        return self._compiled(q, k, v, causal=self.geometry.causal and not cross, keep=keep).to(v.dtype)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        if why_not_compiled(q, self.power):
            return super().maps(q, k)
        q, k = to_float32(q, k)
        identity = torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
        with torch.autocast("cpu", enabled=False):
            return self._compiled(q, k, identity, causal=self.geometry.causal)

    def _compiled(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, keep: Keep = None) -> Tensor:
        options: dict[str, Any] = {"power": self.power, "eps": self.eps, "causal": causal, "keep": keep}
        return sinc_attention(q, k, v, self.log_kernel.radius, disc=True, **options)

    @torch.no_grad()
    def _watch_last_query(self, q: Tensor, k: Tensor, keep_queries: Keep, keep: Keep) -> None:
        last = of_last_query(q[:WATCHED_SEQUENCES], keep_queries)[:, :, None]
        keep = None if keep is None else keep[:WATCHED_SEQUENCES]
        self.watch(self._weights(last, k[:WATCHED_SEQUENCES], causal=False, keep=keep)[:, :, 0])

    def null(self) -> float:
        return math.log(self.eps)

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        return super().weights(q, k, visible) if self.eps else visible_softmax(self.log_kernel(q, k), visible)

    def backend_name(self, device: torch.device) -> str:
        obstacle = why_not_compiled(torch.empty(0, device=device), self.power)
        return super().backend_name(device) if obstacle else "compiled"
