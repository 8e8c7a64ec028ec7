"""Logarithms of kernels, log w_ij, as explicit matrices, for mechanisms that use them beyond a normalised sum."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fourierformer.kernels.sinc.portable import log_sinc, log_sinc_slope
from fourierformer.kernels.sinc.reference import arguments, differences
from fourierformer.marks import mark

Kind = Literal["dot", "gaussian", "sinc"]


class LogKernel(nn.Module):
    """log w (B, H, N, M) of q (B, H, N, D) and k (B, H, M, D), float32 or float64.

    dot: q.k / sqrt(D), as softmax. gaussian: -|q - k|^2 / (2 bandwidth). sinc: power * sum_d log |sinc(R (q_d - k_d))|
    with a learned R, `radius` at first.
    """

    def __init__(self, kind: Kind, *, bandwidth: float = 1.0, radius: float = 1.0, power: int = 4):
        super().__init__()
        self.kind, self.bandwidth, self.power = kind, bandwidth, power
        if kind == "sinc":
            self.radius = nn.Parameter(torch.tensor(radius))
            mark(self, "radius", no_weight_decay=True)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        if self.kind == "dot":
            return q @ k.mT / math.sqrt(q.shape[-1])
        if self.kind == "gaussian":
            return squared_distances(q, k) / (-2 * self.bandwidth)
        product: Tensor = LogSincProduct.apply(q, k, self.radius.to(q.dtype), self.power)
        return product

    def diagnostics(self) -> dict[str, float]:
        return {"radius": self.radius.detach().abs().item()} if self.kind == "sinc" else {}


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


def _difference(q: Tensor, k: Tensor, d: int) -> Tensor:
    return differences(q[..., :, None, d], k[..., None, :, d])
