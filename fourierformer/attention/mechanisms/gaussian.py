"""The isotropic Gaussian Nadaraya-Watson estimator: the control between softmax and Fourier attention."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, to_float32
from fourierformer.attention.engines.dot_product import dot_product_attention, dot_product_maps
from fourierformer.attention.engines.features import unit_norm
from fourierformer.errors import check_range
from fourierformer.marks import mark

NARROWEST = 1e-6  # bandwidth sigma^2: far below, |q - k|^2 / sigma^2 is infinite in float32


@register("gaussian", "isotropic Gaussian kernel regression; with unit-norm keys equal to softmax (equation 8)")
@register("kde", "as gaussian with unit-norm keys and half the bandwidth", normalize_keys=True, bandwidth="half")
class Gaussian(Attention):
    """Attention as kernel regression with w_ij = exp(-|q_i - k_j|^2 / (2 sigma^2)) (FourierFormer, section 2).

    With keys of unit norm |k_j|^2 cancels: softmax attention, equation 8 of the paper, where sigma^2 = sqrt(D) gives
    the usual 1/sqrt(D). Computed by softmax's kernels, with D + 1 coordinates. `kde`: the control of robust kernel
    density attention (Han et al. 2023, arXiv 2210.05794), sigma^2 = sqrt(D) / 2 with keys of unit norm; of a model with
    qk_norm=cosine only the queries keep its sharpness, which enters as its square root.
    """

    rotary_ok: bool | str = True
    partial_queries = cross_ok = padding_ok = True
    cost, state, source = "N² C", "2 N C", "FourierFormer, section 2"

    def __init__(
        self, geometry: Geometry, *, bandwidth: float | Literal["half"] | None = None, normalize_keys: bool = False
    ):
        super().__init__(geometry)
        default = math.sqrt(geometry.head_dim)
        start = default if bandwidth is None else default / 2 if bandwidth == "half" else bandwidth
        check_range("attention.bandwidth", start, NARROWEST)
        self.bandwidth = start
        self.normalize_keys = normalize_keys

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        q, k = self.points(q, k)
        return gaussian_attention(q, k, v, self.bandwidth, causal=self.geometry.causal and not cross, keep=keep)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = self.points(q, k)
        with torch.autocast(q.device.type, enabled=False):
            return dot_product_maps(*as_dot_product(q, k), causal=self.geometry.causal, scale=1 / self.bandwidth)

    def points(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The points whose distances count."""
        return q, unit_norm(k) if self.normalize_keys else k


@register("gaussian_full", "Gaussian kernel regression with a full covariance that each head learns")
class GaussianFull(Gaussian):
    """w_ij = exp(-(q_i - k_j)^T P (q_i - k_j) / 2) with P = L L^T, L lower-triangular and learned per head.

    The control for the paper's argument that a product of sinc kernels needs no covariance: here it is estimated.
    Initialised as `gaussian`: P = I / bandwidth. The exponent is |L^T (q - k)|^2, so it is the isotropic kernel of
    L^T q and L^T k, and as fast.
    """

    rotary_ok = "its covariance distinguishes coordinates, which a rotation mixes"

    def __init__(self, geometry: Geometry, *, bandwidth: float | None = None):
        super().__init__(geometry, bandwidth=1.0)  # of the points L^T q and L^T k
        check_range("attention.bandwidth", bandwidth, NARROWEST)
        width = geometry.head_dim
        bandwidth = math.sqrt(width) if bandwidth is None else bandwidth
        rows, columns = torch.tril_indices(width, width)
        start = (rows == columns) / math.sqrt(bandwidth)
        # row by row in a vector: numbers above the diagonal are no parameters
        self.lower = nn.Parameter(start.repeat(geometry.heads, 1))
        mark(self, "lower", no_weight_decay=True)

    def factor(self) -> Tensor:
        """L, (H, D, D)."""
        width = self.geometry.head_dim
        rows, columns = torch.tril_indices(width, width, device=self.lower.device)
        full = self.lower.new_zeros(self.geometry.heads, width * width)
        return full.index_copy(1, rows * width + columns, self.lower).unflatten(1, (width, width))

    def points(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """L^T q and L^T k, in float32 at least."""
        with torch.autocast(q.device.type, enabled=False):
            q, k = to_float32(q, k)
            factor = self.factor().to(q.dtype)
            return q @ factor, k @ factor


def gaussian_attention(q: Tensor, k: Tensor, v: Tensor, bandwidth: float, *, causal: bool, keep: Keep = None) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):  # |k|^2 needs float32: its rounding error enters an exponent
        q, k = as_dot_product(q, k)
        mixed = dot_product_attention(q, k, v.to(q.dtype), causal=causal, scale=1 / bandwidth, keep=keep)
        return mixed.to(v.dtype)


def as_dot_product(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """q and k with one more coordinate, so that softmax of their dot products has Gaussian weights; float32 at least.

    -|q-k|^2/2 = q.k - |k|^2/2 - |q|^2/2: the last term cancels, the middle one is the coordinate added to the key. Only
    differences matter, so positions are relative to the first key, which every query may see: far from the origin the
    terms would be large and their sum inexact.
    """
    q, k = to_float32(q, k)
    origin = k[..., :1, :].detach()
    q, k = F.pad(q - origin, (0, 1), value=1.0), k - origin
    return q, torch.cat([k, -0.5 * k.square().sum(-1, keepdim=True)], dim=-1)
