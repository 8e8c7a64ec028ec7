"""Products of matrices with float32's digits, for mechanisms that solve equations in float32."""

import torch
from torch import Tensor

from fourierformer.kernels.matmul_precision import uses_tf32


def full_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with float32's digits also where a GPU takes TF32's, ten bits of each factor: by three products of parts. A
    covariance, which is a difference of moments, would have negative eigenvalues."""
    if not is_reduced(a):
        return a @ b
    a_high, b_high = (cut_to_tf32(x.detach()) for x in (a, b))
    return a_high @ b_high + ((a - a_high) @ b_high + a_high @ (b - b_high))


def is_reduced(x: Tensor) -> bool:
    """Whether products of tensors like x have TF32's digits."""
    return x.is_cuda and x.dtype == torch.float32 and uses_tf32()


def cut_to_tf32(x: Tensor) -> Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
