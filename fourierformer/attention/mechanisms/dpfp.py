"""DPFP, the deterministic parameter-free projection: sparse positive features that make keys nearly orthogonal."""

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.recurrence import Form
from fourierformer.attention.mechanisms.linear import FeatureAttention, FeaturePair
from fourierformer.errors import SetupError

EPS = 1e-6  # added to the sum of weights, which is 0 where a query shares no feature with any key


def dpfp_features(x: Tensor, nu: int) -> Tensor:
    """r_i r_(i+j) for j = 1..nu, cyclic, with r = relu([x, -x]): (..., D) -> (..., 2 D nu).

    One of relu(x_d), relu(-x_d) is 0, so three of four features are 0.
    """
    rectified = torch.cat([x, -x], dim=-1).relu()
    return torch.cat([rectified * rectified.roll(-j, dims=-1) for j in range(1, nu + 1)], dim=-1)


def check_nu(nu: int, head_dim: int) -> None:
    """SetupError unless 1 <= nu < D. r has 2 D entries: a shift by D yields relu(x) relu(-x) = 0, and a shift by
    2 D - j the same products as a shift by j."""
    if not 1 <= nu < head_dim:
        must = f"be at least 1 and less than the {head_dim} coordinates per head"
        raise SetupError(f"attention.nu must {must}, got {nu}: larger shifts yield zeros or repeated features")


@register("dpfp", "linear attention with sparse, positive, parameter-free features that keep keys apart")
class DPFP(FeatureAttention):
    """A_ij = phi(q_i).phi(k_j), divided by the sum over keys; phi multiplies neighbours of relu([x, -x]).

    A query and a key share a feature only where both have the same signs in its two coordinates.
    """

    cost, state, source = "N M C, M = 2 D nu", "M (C + H)", "Schlag et al. 2021, arXiv 2102.11174"

    def __init__(self, geometry: Geometry, *, nu: int = 3, form: Form = "auto"):
        super().__init__(geometry, form)
        check_nu(nu, geometry.head_dim)
        self.nu, self.features = nu, 2 * geometry.head_dim * nu

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        return FeaturePair(dpfp_features(q, self.nu), dpfp_features(k, self.nu), {"eps": EPS})
