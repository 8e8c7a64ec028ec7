"""The reference's formulas for the portable backend, written for a CPU: without `torch.where` and comparisons, which
are not vectorised there and took three quarters of the time."""

import math

import torch
from torch import Tensor

from fourierformer.kernels.sinc.reference import SERIES, SERIES_BELOW


def log_sinc(z: Tensor) -> Tensor:
    """log |sin z / z|. 0 is replaced by the smallest number, whose sine is itself: log 1."""
    a = z.abs().clamp_min_(torch.finfo(z.dtype).tiny)
    return torch.sin(a).div_(a).abs_().log_()


def log_sinc_slope(z: Tensor) -> Tensor:
    """cot z - 1/z; its series below SERIES_BELOW; 0 where the sine is 0."""
    a = z.abs()
    is_far = (a - SERIES_BELOW).sign_().clamp_min_(0)
    near = a.clamp_max(SERIES_BELOW)
    terms = len(SERIES) if z.dtype == torch.float64 else 5  # next: 6 / pi^12 * 0.5^10 = 6e-9 of the first
    square, series = near * near, torch.full_like(near, -2 * terms * SERIES[terms - 1])
    for k in range(terms - 1, 0, -1):
        series.mul_(square).sub_(2 * k * SERIES[k - 1])
    far = a.clamp_min_(SERIES_BELOW)
    closed = torch.tan(far).reciprocal_().sub_(far.reciprocal_()).nan_to_num_(math.nan, 0.0, 0.0)
    return series.mul_(near).lerp_(closed, is_far).mul_(z.sign())  # lerp by exactly 0 or 1 takes one of the two


def weights_of(scores: Tensor) -> Tensor:
    """exp of the scores, in place, and 0 below 1e-30 (float32). A CPU takes many times longer for subnormal numbers,
    and a sharp kernel has many of them: without this threshold a backward took 2.5 times as long.
    """
    return torch.threshold_(scores, 0.8 * math.log(torch.finfo(scores.dtype).tiny), -math.inf).exp_()
