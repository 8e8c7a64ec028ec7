"""Kernel ridge regression of the values on the keys: weights that undo the redundancy of crowded keys."""

import math

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.log_kernel import squared_distances
from fourierformer.attention.engines.weighted import WeightedAttention
from fourierformer.attention.mechanisms.gaussian import NARROWEST
from fourierformer.errors import check_range


@register("kernel_ridge", "kernel ridge regression of the values on the keys: crowded keys share their weight")
class KernelRidge(WeightedAttention):
    """y_i = K(q_i, keys) (K(keys, keys) + ridge)^-1 values over the keys that query i sees, K Gaussian.

    With K + ridge = L L^T, the factor of the first i keys is the leading block of L: one factorisation serves all
    queries of a causal model. Rows do not sum to 1. ridge -> infinity: sum_j K_ij v_j / ridge; queries equal to keys
    and ridge -> 0: the values themselves.
    """

    rotary_ok = True
    cost, source = "N² C + N³ H", "kernel ridge regression (Saunders et al. 1998) as attention: ours"

    def __init__(self, geometry: Geometry, *, ridge: float = 1.0, bandwidth: float | None = None):
        super().__init__(geometry)
        check_range("attention.ridge", ridge, 1e-3)  # float32 would lose all digits below
        check_range("attention.bandwidth", bandwidth, NARROWEST)
        self.ridge = ridge
        self.bandwidth = math.sqrt(geometry.head_dim) if bandwidth is None else bandwidth

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        kept = visible[..., -1:, :]  # the last query sees all tokens but padding
        among = self._kernel(k, k).masked_fill(~(kept & kept.mT), 0.0)
        penalty = self.ridge + (~kept).to(q.dtype)  # rows of padding equal rows of the identity
        factor, _ = torch.linalg.cholesky_ex(among + torch.diag_embed(penalty[..., 0, :]))
        towards = self._kernel(q, k).masked_fill(~visible, 0.0)
        solved = torch.linalg.solve_triangular(factor, towards.mT, upper=False).mT  # L^-1 of each row
        # of a query's row only the entries of visible keys belong to its leading block
        return torch.linalg.solve_triangular(factor, solved.masked_fill(~visible, 0.0), upper=False, left=False)

    def _kernel(self, q: Tensor, k: Tensor) -> Tensor:
        # errors of float32 would be larger than the bandwidth for long keys, and the Gram matrix not positive definite
        squares = squared_distances(q.double(), k.double()).to(q.dtype)
        return (squares / (-2 * self.bandwidth)).exp()
