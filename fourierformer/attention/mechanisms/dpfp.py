"""DPFP, the deterministic parameter-free projection: sparse positive features that make keys nearly orthogonal."""

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, State
from fourierformer.attention.engines.recurrence import Form, linear_attention, linear_maps, linear_start, linear_step
from fourierformer.errors import SetupError

EPS = 1e-6  # added to the sum of weights: all of them are 0 where a query shares no feature with any key


def dpfp_features(x: Tensor, nu: int) -> Tensor:
    """r_i r_(i+j) for j = 1..nu, cyclic, with r = relu([x, -x]): (..., D) -> (..., 2 D nu).

    Of each pair relu(x_d), relu(-x_d) one is 0, so three of four features are 0.
    """
    rectified = torch.cat([x, -x], dim=-1).relu()
    return torch.cat([rectified * rectified.roll(-j, dims=-1) for j in range(1, nu + 1)], dim=-1)


def check_nu(nu: int, head_dim: int) -> None:
    """SetupError unless 1 <= nu < D. r has 2 D entries: a shift by D gives products relu(x) relu(-x) = 0, and a shift
    by 2 D - j gives the same products as a shift by j."""
    if not 1 <= nu < head_dim:
        raise SetupError(
            f"attention.nu must be at least 1 and less than the {head_dim} coordinates per head, got {nu}: "
            "larger shifts give features that are 0 or repeat others"
        )


@register("dpfp", "linear attention with sparse, positive, parameter-free features that keep keys apart")
class DPFP(Attention):
    """A_ij = phi(q_i).phi(k_j), divided by the sum over keys; phi multiplies neighbours of relu([x, -x]).

    A query and a key share a feature only where both have the same signs in its two coordinates.
    """

    partial_queries = cross_ok = padding_ok = True
    cost, state, source = "N M C, M = 2 D nu", "M (C + H)", "Schlag et al. 2021, arXiv 2102.11174"

    def __init__(self, geometry: Geometry, *, nu: int = 3, form: Form = "auto"):
        super().__init__(geometry)
        check_nu(nu, geometry.head_dim)
        self.nu, self.form = nu, form

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Tensor | None = None, cross: bool = False
    ) -> Tensor:
        fq, fk, causal = self._features(q), self._features(k), self.geometry.causal and not cross
        return linear_attention(fq, fk, v, causal=causal, form=self.form, eps=EPS, keep=keep)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        return linear_maps(self._features(q), self._features(k), causal=self.geometry.causal, eps=EPS)

    def start(self, batch: int) -> State:
        heads, width, weight = self.geometry.heads, self.geometry.head_dim, self.qkv.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return linear_start(batch, heads, 2 * width * self.nu, width, weight.device, dtype)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        return linear_step(self._features(q), self._features(k), v, state, eps=EPS)

    def _features(self, x: Tensor) -> Tensor:
        return dpfp_features(x.to(torch.promote_types(x.dtype, torch.float32)), self.nu)
