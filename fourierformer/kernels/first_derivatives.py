"""Gradients of kernels that are computed once: differentiated again, they raise an error."""

from collections.abc import Sequence

import torch
from torch import Tensor


def refuse_second_derivative(ctx, *_):
    raise NotImplementedError(
        "this kernel has first derivatives only: its gradients cannot be differentiated again "
        "(create_graph=True, hessian). Use the difference of two gradients, in float64"
    )


def differentiable_once(gradients: Sequence[Tensor], *sources: Tensor) -> tuple[Tensor, ...]:
    """Gradients that raise an error when they are differentiated again by what they were made of. (torch's
    `once_differentiable` treats them as constants: its error is not on the way to the sources.)"""
    if not torch.is_grad_enabled():
        return tuple(gradients)
    return tuple(_DifferentiableOnce.apply(gradient, *sources) for gradient in gradients)


class _DifferentiableOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    backward = staticmethod(refuse_second_derivative)
