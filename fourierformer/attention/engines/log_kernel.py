"""Logarithms of kernels, log w_ij, as explicit matrices, for mechanisms that use them beyond a normalised sum."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fourierformer.kernels.sinc.portable import log_sinc, log_sinc_slope
from fourierformer.kernels.sinc.reference import arguments, differences
from fourierformer.marks import mark

SERIES_BELOW = 0.5
LARGEST = 1e6
SMALLEST = 1e-30  # of a factor of a weight, whose logarithm is to be finite


def rayleigh_sums(count: int, order: int = 1) -> list[float]:
    """sum_k j_k^-2, sum_k j_k^-4, ... over the zeros j_k of the Bessel function of this order: log (2 J1(x) / x) =
    -sum_n s_n x^2n / n. s_1 = 1 / (4 (order + 1)), (n + order) s_n = sum_{m < n} s_m s_(n - m) (Kishore 1963)."""
    sums = [1 / (4 * (order + 1))]
    for n in range(2, count + 1):
        sums.append(sum(sums[m - 1] * sums[n - m - 1] for m in range(1, n)) / (n + order))
    return sums


RAYLEIGH = rayleigh_sums(9)  # the next term is (0.5 / 3.83)^20 of the first

Kind = Literal["dot", "gaussian", "sinc", "disc"]


class LogKernel(nn.Module):
    """log w (B, H, N, M) of q (B, H, N, D) and k (B, H, M, D), float32 or float64.

    dot: q.k / sqrt(D), as softmax. gaussian: -|q - k|^2 / (2 bandwidth). sinc: power * sum_d log |sinc(R (q_d - k_d))|
    with a learned R, `radius` at first. disc: power * sum_m log |2 J1(R r_m) / (R r_m)|, r_m = |q - k| in the plane of
    coordinates 2m and 2m + 1.
    """

    def __init__(self, kind: Kind, *, bandwidth: float = 1.0, radius: float = 1.0, power: int = 4):
        super().__init__()
        self.kind, self.bandwidth, self.power = kind, bandwidth, power
        if kind in ("sinc", "disc"):
            self.radius = nn.Parameter(torch.tensor(radius))
            mark(self, "radius", no_weight_decay=True)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        if self.kind == "dot":
            return q @ k.mT / math.sqrt(q.shape[-1])
        if self.kind == "gaussian":
            return squared_distances(q, k) / (-2 * self.bandwidth)
        function = LogSincProduct if self.kind == "sinc" else LogDiscProduct
        product: Tensor = function.apply(q, k, self.radius.to(q.dtype), self.power)
        return product

    def diagnostics(self) -> dict[str, float]:
        return {"radius": self.radius.detach().abs().item()} if hasattr(self, "radius") else {}


def squared_distances(q: Tensor, k: Tensor) -> Tensor:
    """|q_i - k_j|^2, (..., N, M). Relative to the first key: far from the origin the sum of large terms is inexact."""
    origin = k[..., :1, :].detach()
    q, k = q - origin, k - origin
    squares = q.square().sum(-1, keepdim=True) + k.square().sum(-1)[..., None, :]
    return (squares - 2 * q @ k.mT).clamp_min(0)


class LogSincProduct(torch.autograd.Function):
    """power * sum_d log |sinc(R (q_id - k_jd))|, one coordinate after the other: memory for one matrix per head, where
    autograd would keep several for every coordinate."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, radius: Tensor, power: int) -> Tensor:
        ctx.save_for_backward(q, k, radius)
        ctx.power = power
        total = q.new_zeros(*q.shape[:-1], k.shape[-2])
        for d in range(q.shape[-1]):
            total += log_sinc(arguments(_difference(q, k, d), radius))
        return power * total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, radius = ctx.saved_tensors
        of_q, of_k, of_radius = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(radius)
        for d in range(q.shape[-1]):
            difference = _difference(q, k, d)
            of_z = ctx.power * grads[0] * log_sinc_slope(arguments(difference, radius))
            of_radius += (of_z * difference).sum()
            of_q[..., d] = radius * of_z.sum(-1)
            of_k[..., d] = -radius * of_z.sum(-2)
        return of_q, of_k, of_radius, None


class LogDiscProduct(torch.autograd.Function):
    """power * sum_m log |2 J1(R r_m) / (R r_m)|, one plane after the other."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, radius: Tensor, power: int) -> Tensor:
        ctx.save_for_backward(q, k, radius)
        ctx.power = power
        total = q.new_zeros(*q.shape[:-1], k.shape[-2])
        for d in range(0, q.shape[-1], 2):
            x = _disc_argument(_difference(q, k, d), _difference(q, k, d + 1), radius)
            total += torch.where(x > 0, 2 * torch.special.bessel_j1(x) / x, 1.0).abs().clamp_min(SMALLEST).log()
        return power * total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, radius = ctx.saved_tensors
        of_q, of_k, of_radius = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(radius)
        for d in range(0, q.shape[-1], 2):
            first, second = _difference(q, k, d), _difference(q, k, d + 1)
            slope = ctx.power * grads[0] * disc_slope(_disc_argument(first, second, radius))
            of_radius += (slope * radius * (first.square() + second.square())).sum()
            for coordinate, difference in ((d, first), (d + 1, second)):
                of_difference = slope * radius.square() * difference
                of_q[..., coordinate] = of_difference.sum(-1)
                of_k[..., coordinate] = -of_difference.sum(-2)
        return of_q, of_k, of_radius, None


def _disc_argument(first: Tensor, second: Tensor, radius: Tensor) -> Tensor:
    """R r, held at a size that float32 sines still resolve."""
    return (radius * torch.hypot(first, second)).abs().clamp_max(LARGEST)


def disc_slope(x: Tensor) -> Tensor:
    """d/dx log |2 J1(x) / x| / x = (J0(x) / J1(x) - 2 / x) / x; by its series near 0, where both terms are large."""
    near = x < SERIES_BELOW
    square, series = x.square(), torch.zeros_like(x)
    for rayleigh in reversed(RAYLEIGH):
        series = series * square - 2 * rayleigh
    safe = torch.where(near, 1.0, x)
    j1 = torch.special.bessel_j1(safe)
    closed = torch.special.bessel_j0(safe) / torch.where(j1 == 0, 1.0, j1) - 2 / safe
    return torch.where(near, series, torch.where(j1 == 0, 0.0, closed) / safe)


def _difference(q: Tensor, k: Tensor, d: int) -> Tensor:
    return differences(q[..., :, None, d], k[..., None, :, d])
