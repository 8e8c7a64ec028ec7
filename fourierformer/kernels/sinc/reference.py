"""Fourier attention as printed, never optimised: every other backend is tested against it.

    z_ijd = R (q_id - k_jd)                                              (Definition 1 of the paper, in log form)
    s_ij  = power * sum_d log |sin(z_ijd) / z_ijd|                       -inf where a factor is 0
    y_i   = sum_j exp(s_ij) v_j / (eps + sum_j exp(s_ij))

Any floating dtype, float64 included. Holds several N x M x D tensors at once.
"""

import math

import torch
from torch import Tensor

from fourierformer.kernels.first_derivatives import differentiable_once


def even_zetas(count: int) -> list[float]:
    """zeta(2), zeta(4), ... by Euler: pi^2 / 6, then zeta(2k) = 2 / (2k + 1) sum_j zeta(2j) zeta(2k - 2j)."""
    zetas = [math.pi**2 / 6]
    for k in range(2, count + 1):
        zetas.append(2 / (2 * k + 1) * sum(zetas[j - 1] * zetas[k - j - 1] for j in range(1, k)))
    return zetas


# log(sin z / z) = - sum_k zeta(2k) / (k pi^2k) z^2k, from the product formula of the sine. Twelve terms: at |z| = 0.5,
# where the closed form of the slope takes over, the first one left out is (0.5 / pi)^26 / 13 = 1e-22.
SERIES = [zeta / (k * math.pi ** (2 * k)) for k, zeta in enumerate(even_zetas(12), start=1)]
SERIES_BELOW = 0.5


def log_sinc_value(z: Tensor) -> Tensor:
    """log |sin z / z|, 0 at z = 0. Not in place: torch.compile of torch 2.11 would lose the gradient."""
    return torch.where(z == 0, 1.0, torch.sin(z) / z).abs().log()


def log_sinc_slope(z: Tensor) -> Tensor:
    """d/dz log |sin z / z| = cot z - 1/z; by its series near 0, where the difference would lose all digits."""
    # The sixth term is 6 / pi^12 * 0.5^10 = 6e-9 of the first: too small for float32.
    terms = len(SERIES) if z.dtype == torch.float64 else 5
    square = z * z
    series = torch.full_like(z, -2 * terms * SERIES[terms - 1])
    for k in range(terms - 1, 0, -1):
        series = series.mul_(square).sub_(2 * k * SERIES[k - 1])
    sine = torch.sin(z)
    near = z.abs() < SERIES_BELOW
    # A weight whose sine is exactly 0 is 0 and flat (it is an even power), so its slope may be anything finite.
    safe = near | (sine == 0)
    closed = torch.cos(z) / torch.where(safe, 1.0, sine) - 1 / torch.where(safe, 1.0, z)
    return torch.where(near, series * z, torch.where(safe, 0.0, closed))


class _LogSinc(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return log_sinc_value(z)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        with torch.no_grad():
            gradient = grad * log_sinc_slope(z)
        (gradient,) = differentiable_once([gradient], grad, z)
        return gradient


def differences(q: Tensor, k: Tensor) -> Tensor:
    """q - k, held at the largest finite number where it overflows."""
    largest = torch.finfo(q.dtype).max
    return (q - k).clamp(-largest, largest)


def arguments(difference: Tensor, radius: Tensor) -> Tensor:
    """z = R (q - k), held at the largest finite number where it overflows: the sine of infinity is not a number."""
    largest = torch.finfo(difference.dtype).max
    return (difference * radius).clamp(-largest, largest)


def future(rows: int, columns: int, device: torch.device) -> Tensor:
    """True where a query must not look. Bottom-right aligned: row i sees columns 0 .. i + columns - rows."""
    return torch.ones(rows, columns, dtype=torch.bool, device=device).triu(columns - rows + 1)


def blank_left_out(keep: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Keys or values (B, H, M, D) with 0 where keep (B, M) is False: a weight of 0 would not hide NaN."""
    return [t.masked_fill(~keep[:, None, :, None], 0.0) for t in tensors]


def sinc_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, *, power: int, eps: float, causal: bool, keep: Tensor | None = None
) -> Tensor:
    """Fourier attention: q (B, H, N, D), k (B, H, M, D), v (B, H, M, Dv), radius broadcastable to (H, D) ->
    (B, H, N, Dv).

    keep (B, M), bool: False for keys that no query may see.
    An odd power gives weights of both signs; the other backends have even ones.
    A query whose weights are all 0 (it sees no key, or eps = 0 and every weight is exactly 0) gets the output 0.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    if keep is not None:
        k, v = blank_left_out(keep, k, v)
    with torch.autocast(q.device.type, enabled=False):
        scale = radius.to(dtype).expand(q.shape[1], q.shape[3])[:, None, None, :]
        z = arguments(differences(q.to(dtype)[:, :, :, None, :], k.to(dtype)[:, :, None, :, :]), scale)
        scores = power * _LogSinc.apply(z).sum(-1)
        if causal:
            scores = scores.masked_fill(future(q.shape[2], k.shape[2], q.device), -math.inf)
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None, :], -math.inf)
        log_eps = math.log(eps) if eps > 0 else -math.inf
        # eps is one more key with log-weight log(eps) and value 0, so it takes part in the running maximum.
        top = scores.detach().amax(-1, keepdim=True).clamp_min(log_eps)
        top = torch.where(top == -math.inf, 0.0, top)
        weights = torch.exp(scores - top)
        if power % 2:
            flat = z.detach()  # a sign has no slope, and that of sin(z) / z at 0 is not a number
            weights = weights * torch.where(flat == 0, 1.0, torch.sin(flat) / flat).sign().prod(-1)
        total = weights.sum(-1, keepdim=True) + torch.exp(log_eps - top)
        output = (weights @ v.to(dtype)) / torch.where(total == 0, 1.0, total)
    return output.to(q.dtype)
