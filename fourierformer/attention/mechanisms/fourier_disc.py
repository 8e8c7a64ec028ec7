"""Fourier attention over pairs of coordinates: frequencies in a disc instead of a square."""

import math
from typing import Literal

from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.log_kernel import LogKernel
from fourierformer.attention.engines.weighted import visible_softmax
from fourierformer.attention.mechanisms.fourier import check_power, initial_radius
from fourierformer.attention.mechanisms.null_key import NullKeyAttention
from fourierformer.errors import SetupError, check_range

EQUAL_CURVATURE = math.sqrt(4 / 3)  # of 2 J1(x) / x = 1 - x^2 / 8 and sinc(x) = 1 - x^2 / 6


@register("fourier_disc", "the paper's kernel with discs in frequency: invariant to rotations of pairs of coordinates")
class FourierDisc(NullKeyAttention):
    """w_ij = prod_m (2 J1(R r_m) / (R r_m))^power, r_m the length of q_i - k_j in the plane of coordinates 2m, 2m + 1.

    The Fourier integral estimator (FourierFormer, Definition 1) integrates exp(i w.u) over |w_d| <= R, a square in each
    plane, which gives sinc products. Over the disc |w| <= R it gives pi R^2 2 J1(R r) / (R r), with the Bessel function
    J1: a function of the distance in the plane, so that rotary positions make it a function of relative positions,
    which a product of sincs is not. `paper` and `matched` are sqrt(4/3) times the radii of `fourier`: equal curvature
    at 0.

    By explicit matrices in plain torch, at the cost of one Bessel function per query, key and plane.
    """

    rotary_ok = True
    cost, source = "N² C / 2 Bessel", "ours, from Nguyen et al. 2022, arXiv 2206.00206"

    def __init__(
        self, geometry: Geometry, *, power: int = 4, radius: float | Literal["paper", "matched"] = "matched",
        eps: float = 1e-6,
    ):  # fmt: skip
        super().__init__(geometry)
        if geometry.head_dim % 2:
            width = f"{geometry.head_dim} coordinates per head"
            raise SetupError(f"attention=fourier_disc takes pairs of coordinates: {width} is an odd number")
        check_power(power, allow_negative=False, backend="auto")
        check_range("attention.eps", eps, 0)
        self.eps = eps
        start = initial_radius(radius, geometry, power, EQUAL_CURVATURE)
        self.log_kernel = LogKernel("disc", radius=start, power=power)

    def null(self) -> float:
        return math.log(self.eps)

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        return super().weights(q, k, visible) if self.eps else visible_softmax(self.log_kernel(q, k), visible)
