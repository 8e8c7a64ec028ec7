"""The GPU kernel in plain PyTorch, where a product of sines becomes matrix products. Read it before fused.py.

A sine per query, key and coordinate is the cost of Fourier attention. Three identities remove it:

    sinc(z)        = int_0^1 cos(t z) dt                     sinc is a mean of cosines,
                   = sum_h w_h cos(t_h z)                    of which a few at the right frequencies t_h are enough
    cos(t (x - y)) = cos(t x) cos(t y) + sin(t x) sin(t y)   and a cosine of a difference is a dot product

Features of x = R q_d and y = R k_d are sqrt(w_h) cos(t_h x) and sqrt(w_h) sin(t_h x). Their dot products are the
factors sinc(R (q_d - k_d)) of all pairs in one coordinate d: ONE matrix product, with sines per token, not per pair.
"""

import torch
from torch import Tensor


def frequencies(count: int) -> tuple[Tensor, Tensor]:
    """Nodes t_h and weights w_h: sum_h w_h f(t_h) = int_0^1 f(t) dt for even polynomials f up to degree 4 count - 1.

    The positive half of the Gauss-Legendre rule of 2 count nodes on [-1, 1]; f is even, so the other half repeats it.
    """
    i = torch.arange(1, 2 * count, dtype=torch.float64)
    off_diagonal = i / torch.sqrt(4 * i**2 - 1)  # of the Jacobi matrix of the Legendre polynomials (Golub and Welsch)
    values, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    return values[count:], 2 * vectors[0, count:] ** 2


def features(x: Tensor, count: int = 8) -> Tensor:
    """(...) -> (..., 2 count) with features(x) @ features(y) = sinc(x - y) to 1e-7, for |x - y| up to 16 with 8
    frequencies, up to 42 with 16."""
    nodes, weights = (t.to(x.dtype) for t in frequencies(count))
    angles = x[..., None] * nodes
    return torch.cat([angles.cos(), angles.sin()], dim=-1) * weights.sqrt().repeat(2)


def slope_features(x: Tensor, count: int = 8) -> Tensor:
    """Derivatives of `features`: slope_features(x) @ features(y) = sinc'(x - y), one more matrix product."""
    nodes, weights = (t.to(x.dtype) for t in frequencies(count))
    angles = x[..., None] * nodes
    return torch.cat([-angles.sin(), angles.cos()], dim=-1) * (nodes * weights.sqrt()).repeat(2)


def fourier_attention_by_features(
    q: Tensor, k: Tensor, v: Tensor, radius: float, *, power: int = 4, eps: float = 1e-6, count: int = 8
) -> Tensor:
    """Fourier attention of one head: q (N, D), k (M, D), v (M, Dv) -> (N, Dv). The kernel computes it tile by tile, so
    that the N x M weights stay in registers; eps > 0 needs no logarithm, since weights lie in [0, 1]."""
    product = torch.ones(len(q), len(k), dtype=q.dtype)
    for d in range(q.shape[1]):
        product = product * (features(radius * q[:, d], count) @ features(radius * k[:, d], count).T)
    weights = product**power
    return weights @ v / (eps + weights.sum(1, keepdim=True))
