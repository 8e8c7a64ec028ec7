"""Local linear regression of the values on the keys, and Parallax, which learns what its solve computes."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Projected
from fourierformer.attention.engines.full_product import full_product
from fourierformer.attention.engines.log_kernel import SINC_TURNS, Kind, LogKernel, check_pairs
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits, visible_softmax
from fourierformer.attention.mechanisms.fourier import matched_radius
from fourierformer.attention.mechanisms.fourier_disc import EQUAL_CURVATURE
from fourierformer.errors import check_range


@register("local_linear", "kernel regression of first order: an affine fit of the values around each query, Gaussian")
@register("local_linear_dot", "as local_linear with softmax's weights, as published", weights="dot")
@register("local_linear_fourier", "as local_linear with sinc⁴ products as weights", weights="sinc")
class LocalLinear(WeightedAttention):
    """y_i = a of min over a, B of sum_j p_ij |v_j - a - B^T (k_j - q_i)|^2 + ridge |B|^2, p = softmax_j(log w_ij).

    Softmax attention fits a constant (Nadaraya-Watson). Centred, with k~_i = sum_j p_ij k_j and C_i the covariance of
    the keys under p_i: W_ij = p_ij (1 - r_i.(k_j - k~_i)), r_i = (C_i + ridge)^-1 (k~_i - q_i). Rows sum to 1; weights
    may be negative. ridge -> infinity: kernel regression with weights p.
    """

    cost, source = "N² D C / 2 + N D² C / 6", "Zuo et al. 2025, arXiv 2510.01450"

    def __init__(
        self, geometry: Geometry, *, ridge: float = 0.1, weights: Kind = "gaussian", learn_ridge: bool = False,
    ):  # fmt: skip
        super().__init__(geometry)
        check_range("attention.ridge", ridge, 0, above_low=True)
        width = geometry.head_dim
        if weights == "disc":
            check_pairs("local_linear attention.weights=disc", width)
        radius = matched_radius(width, 4) * (EQUAL_CURVATURE if weights == "disc" else 1.0)
        self.log_kernel = LogKernel(weights, bandwidth=math.sqrt(width), radius=radius)
        self.rotary_ok = SINC_TURNS if weights == "sinc" else True
        self.ridge = ridge
        self.log_ridge = nn.Parameter(torch.full((geometry.heads,), math.log(ridge))) if learn_ridge else None

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        p = visible_softmax(self.log_kernel(q, k), visible)
        return probed(p, k, self._slopes(p, q, k))

    def _slopes(self, p: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """r, (B, H, N, D). Relative to the first key: far from the origin a covariance is a small difference."""
        origin = k[..., :1, :].detach()
        q, k = q - origin, k - origin
        mean, width = full_product(p, k), q.shape[-1]
        rows, columns = torch.tril_indices(width, width, device=q.device)
        moments = torch.empty(*q.shape, width, dtype=q.dtype, device=q.device)
        moments[..., rows, columns] = full_product(p, k[..., rows] * k[..., columns])
        moments = moments.tril() + moments.tril(-1).mT
        # at least the rounding errors of the moments, else the factorisation fails for very long keys
        rounding = 8 * torch.finfo(q.dtype).eps * moments.diagonal(dim1=-2, dim2=-1).sum(-1).detach()
        least = self.ridge if self.log_ridge is None else self.log_ridge.exp().to(q.dtype)[:, None]
        ridge = rounding.clamp_min(least)[..., None, None]
        covariance = moments - mean[..., None] * mean[..., None, :]
        covariance = covariance + ridge * torch.eye(width, dtype=q.dtype, device=q.device)
        factor, _ = torch.linalg.cholesky_ex(covariance)  # without the check of `cholesky`, for which a GPU would wait
        return torch.cholesky_solve((mean - q)[..., None], factor)[..., 0]

    def diagnostics(self) -> dict[str, float]:
        return self.log_kernel.numbers()


@register(
    "parallax", "softmax and a learned probe of the covariance of keys and values: local_linear without its solve"
)
class Parallax(WeightedAttention):
    """W_ij = p_ij (1 - r_i.(k_j - k~_i)), p = softmax(q.k / sqrt(D)), k~_i = sum_j p_ij k_j, r_i = P x_i.

    Local linear attention computes r_i, here it is a projection P of the query's token. P = 0 at first (softmax), or
    N(0, 0.02) (`probe_init="normal"`). Rows sum to 1; weights may be negative. Its authors report gains with the
    optimizer Muon, and about none with AdamW.
    """

    rotary_ok = True
    cost, source = "3/2 N² C", "Zuo et al. 2026, arXiv 2605.29157"

    def __init__(self, geometry: Geometry, *, probe_init: Literal["zero", "normal"] = "zero"):
        super().__init__(geometry)
        # not nn.Linear, which models initialise anew
        self.probe = nn.Parameter(0.02 * (probe_init == "normal") * torch.randn(geometry.dim, geometry.dim))

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """q of width 2 D: the query, and r."""
        q, k, v = super().project(x, memory, last)
        queries = x if last is None else x[:, -last:]
        return torch.cat([q, self._split(nn.functional.linear(queries, self.probe))], dim=-1), k, v

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        q, r = q.chunk(2, dim=-1)
        return probed(visible_softmax(scaled_logits(q, k), visible), k, r)


def probed(p: Tensor, k: Tensor, r: Tensor) -> Tensor:
    """p_ij (1 - r_i.(k_j - sum_l p_il k_l))."""
    of_keys = r @ k.mT
    return p * (1 - (of_keys - (p * of_keys).sum(-1, keepdim=True)))  # 1 - r.k alone would lose the 1 for long keys
