"""Logarithms of kernels, log w_ij, as explicit matrices, for mechanisms that use them beyond a normalised sum."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fourierformer.attention.engines.weighted import scaled_logits
from fourierformer.errors import SetupError
from fourierformer.kernels.first_derivatives import differentiable_once
from fourierformer.kernels.sinc.portable import log_sinc, log_sinc_slope
from fourierformer.kernels.sinc.reference import differences
from fourierformer.marks import mark

Kind = Literal["dot", "gaussian", "sinc", "disc"]
SINC_TURNS = "a product of sincs over coordinates changes with rotations: take attention=fourier_disc"  # see rotary_ok


class LogKernel(nn.Module):
    """log w (B, H, N, M) of q (B, H, N, D) and k (B, H, M, D), float32 or float64.

    dot: q.k / sqrt(D), as softmax. gaussian: -|q - k|^2 / (2 bandwidth). sinc: power * sum_d log |sinc(R (q_d - k_d))|
    with a learned R, `radius` at first. disc: power * sum_m log |2 J1(R r_m) / (R r_m)|, r_m = |q - k| in the plane of
    coordinates 2m and 2m + 1.
    """

    def __init__(self, kind: Kind, *, bandwidth: float = 1.0, radius: float = 1.0, power: int = 4):
        super().__init__()
        self.kind, self.bandwidth, self.power = kind, bandwidth, power
        if kind in FACTORS:
            self.radius = nn.Parameter(torch.tensor(radius))
            mark(self, "radius", no_weight_decay=True)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        if self.kind == "dot":
            return scaled_logits(q, k)
        if self.kind == "gaussian":
            return squared_distances(q, k) / (-2 * self.bandwidth)
        product: Tensor = LogProduct.apply(q, k, self.radius.to(q.dtype), self.power, FACTORS[self.kind])
        return product

    def numbers(self) -> dict[str, float]:
        """The radius, where there is one, for the diagnostics of a layer."""
        return {"radius": self.radius.detach().abs().item()} if self.kind in FACTORS else {}


def squared_distances(q: Tensor, k: Tensor) -> Tensor:
    """|q_i - k_j|^2, (..., N, M). Relative to the first key: far from the origin the sum of large terms is inexact."""
    origin = k[..., :1, :].detach()
    q, k = q - origin, k - origin
    squares = q.square().sum(-1, keepdim=True) + k.square().sum(-1)[..., None, :]
    return (squares - 2 * q @ k.mT).clamp_min(0)


def check_pairs(attention: str, width: int) -> None:
    """SetupError for an odd number of coordinates, which discs do not take."""
    if width % 2:
        raise SetupError(
            f"attention={attention} takes pairs of coordinates: {width} coordinates per head is an odd number"
        )


class Factor(NamedTuple):
    """A factor f(R r) of a product kernel, one for every `width` coordinates, r the length of q - k in them."""

    width: int
    log_value: Callable[[Tensor], Tensor]  # log |f(x)|, x >= 0
    slope: Callable[[Tensor], Tensor]  # its derivative


class LogProduct(torch.autograd.Function):
    """power * sum log |f(R r)| over the factors, one after the other: memory for one matrix per head, where autograd
    would keep several for every factor."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, radius: Tensor, power: int, factor: Factor) -> Tensor:
        ctx.save_for_backward(q, k, radius)
        ctx.power, ctx.factor = power, factor
        total = q.new_zeros(*q.shape[:-1], k.shape[-2])
        for first in range(0, q.shape[-1], factor.width):
            total += factor.log_value(_scaled(_length(_differences(q, k, first, factor.width)), radius))
        return power * total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: recomputed activations can be unpacked a single time
        with torch.no_grad():
            gradients = LogProduct._gradients(ctx, grads[0], *saved)
        return *differentiable_once(gradients, grads[0], *saved), None, None

    @staticmethod
    def _gradients(ctx: Any, grad: Tensor, q: Tensor, k: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_q, of_k, of_radius = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(radius)
        for first in range(0, q.shape[-1], ctx.factor.width):
            parts = _differences(q, k, first, ctx.factor.width)
            length = _length(parts)
            slope = ctx.power * grad * ctx.factor.slope(_scaled(length, radius))
            of_radius += (slope * length).sum() * radius.sign()
            per_length = slope * radius.abs() / length.clamp_min(torch.finfo(q.dtype).tiny)
            for d, part in enumerate(parts, first):
                of_q[..., d] = (per_length * part).sum(-1)
                of_k[..., d] = -(per_length * part).sum(-2)
        return of_q, of_k, of_radius


def _differences(q: Tensor, k: Tensor, first: int, width: int) -> list[Tensor]:
    """q_d - k_d (..., N, M) for `width` coordinates d from `first` on."""
    return [differences(q[..., :, None, d], k[..., None, :, d]) for d in range(first, first + width)]


def _length(parts: list[Tensor]) -> Tensor:
    length = parts[0].abs() if len(parts) == 1 else torch.hypot(*parts)
    return length.clamp_max(torch.finfo(length.dtype).max)


def _scaled(length: Tensor, radius: Tensor) -> Tensor:
    """R r, at most the largest finite number: the sine of infinity is not a number."""
    return (radius.abs() * length).clamp_max(torch.finfo(length.dtype).max)


def log_disc(x: Tensor) -> Tensor:
    """log |2 J1(x) / x|, 0 at x = 0; at least log of the smallest normal number.

    Between 5 and 8, torch's J1 and J0 are off by 4e-7 in float64 too (torch 2.15; measured against scipy's).
    """
    value = torch.where(x > 0, 2 * torch.special.bessel_j1(x) / x, 1.0)
    return value.abs().clamp_min(torch.finfo(x.dtype).tiny).log()


def rayleigh_sums(count: int) -> list[float]:
    """sum_k j_k^-2, sum_k j_k^-4, ... over the zeros j_k of the Bessel function J1: log (2 J1(x) / x) =
    -sum_n s_n x^2n / n. s_1 = 1 / 8, (n + 1) s_n = sum_{m < n} s_m s_(n - m) (Kishore 1963)."""
    sums = [1 / 8]
    for n in range(2, count + 1):
        sums.append(sum(sums[m - 1] * sums[n - m - 1] for m in range(1, n)) / (n + 1))
    return sums


SERIES_BELOW = 0.5
RAYLEIGH = rayleigh_sums(9)  # the next term is (0.5 / 3.83)^18 of the first


def log_disc_slope(x: Tensor) -> Tensor:
    """J0(x) / J1(x) - 2 / x; near 0, where both terms are large, -2 sum_n s_n x^(2n - 1). 0 where J1 is 0."""
    near = x < SERIES_BELOW
    square, series = x.square(), torch.zeros_like(x)
    for rayleigh in reversed(RAYLEIGH):
        series = series * square - 2 * rayleigh
    safe = torch.where(near, 1.0, x)
    j1 = torch.special.bessel_j1(safe)
    closed = torch.special.bessel_j0(safe) / torch.where(j1 == 0, 1.0, j1) - 2 / safe
    return torch.where(near, series * x, torch.where(j1 == 0, 0.0, closed))


FACTORS = {"sinc": Factor(1, log_sinc, log_sinc_slope), "disc": Factor(2, log_disc, log_disc_slope)}
