"""The Fourier kernel as a mean of cosines: the law of its frequencies, sampled or replaced by a Gauss rule.

    sinc(R u) = E cos(w R u), w uniform on [-1, 1]    =>    sinc(R u)^n = E cos(omega R u), omega = w_1 + ... + w_n
    prod_d sinc(R u_d)^n = E cos(R omega . u)                              with independent coordinates omega_d

The law of omega is the B-spline of order n on [-n, n] (Irwin and Hall 1927, rescaled), with variance n / 3. Since
cos(omega.(q - k)) = cos(omega.q) cos(omega.k) + sin(omega.q) sin(omega.k), every frequency gives two features, whose
products have the kernel as their mean (Bochner's theorem; Rahimi and Recht 2007). All tables are float64.
"""

import functools
import math
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention.engines.features import orthogonal_gaussian

Sampler = Literal["iid", "orth", "sobol"]
STEP = 2.0**-14  # between points of the table of the distribution function


def spline_density(t: Tensor, power: int) -> Tensor:
    """Density at t of the sum of `power` >= 2 uniform numbers from [-1, 1]; 0 beyond |t| = power."""
    return _truncated_powers(power - t.abs(), power, power - 1)  # even; near its ends the fewest terms cancel


def spline_cdf(t: Tensor, power: int) -> Tensor:
    """The distribution function, P(omega <= t)."""
    lower = _truncated_powers(power - t.abs(), power, power)
    return torch.where(t > 0, 1 - lower, lower)


def spline_quantile(u: Tensor, power: int) -> Tensor:
    """The t with P(omega <= t) = u: maps uniform numbers to the law of omega.

    Linear between the points of a table: the error is 1e-7 for u = 1e-10, less further inside, at most STEP.
    """
    points, table = _cdf_table(power, u.device)
    tail = torch.minimum(u, 1 - u).double()
    right = torch.searchsorted(table, tail.contiguous()).clamp(1, len(table) - 1)
    share = (tail - table[right - 1]) / (table[right] - table[right - 1])
    lower = points[right - 1] + share.clamp(0, 1) * STEP
    return torch.where(u > 0.5, -lower, lower)


@functools.cache
def _cdf_table(power: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Points t <= 0 and P(omega <= t); the law is even. One table per device: models are also built on the meta device,
    to count their parameters."""
    points = torch.arange(-power, STEP, STEP, dtype=torch.float64, device=device)
    return points, spline_cdf(points, power)


def _truncated_powers(x: Tensor, power: int, degree: int) -> Tensor:
    """sum_j (-1)^j C(n, j) max(x - 2j, 0)^degree / (2^n degree!): density for degree n - 1, distribution for n."""
    terms = [(-1) ** j * math.comb(power, j) * (x - 2 * j).clamp_min(0) ** degree for j in range(power + 1)]
    return sum(terms) / float(2**power * math.factorial(degree))  # torch takes no integer beyond 64 bits: n >= 18


def sample_frequencies(count: int, width: int, power: int, sampler: Sampler, seed: int) -> Tensor:
    """(count, width) frequencies. With every sampler each row follows the law of omega, so estimates are unbiased.

    iid: independent rows. orth: blocks of `width` orthogonal normal rows, transformed to the law by coordinates (normal
    distribution function, then quantile), and nearly orthogonal afterwards. sobol: points of a scrambled Sobol
    sequence, which fill the cube evenly, transformed likewise.
    """
    if sampler == "sobol":
        engine = torch.quasirandom.SobolEngine(width, scramble=True, seed=seed)
        return spline_quantile(engine.draw(count, dtype=torch.float64), power)
    generator = torch.Generator().manual_seed(seed)
    if sampler == "orth":
        return spline_quantile(torch.special.ndtr(orthogonal_gaussian(count, width, generator)), power)
    return (2 * torch.rand(power, count, width, generator=generator, dtype=torch.float64) - 1).sum(0)


def gauss_rule(count: int, power: int) -> tuple[Tensor, Tensor]:
    """Nodes and positive weights (count,) with sum_j w_j f(x_j) = E f(omega) for every polynomial f below degree
    2 count.

    Golub and Welsch 1969, from the recursion of the density's orthogonal polynomials (Stieltjes). Between two knots
    the density is a polynomial, so Gauss-Legendre points yield exact inner products.
    """
    points, weights = _density_points(count + power, power)
    before, now = torch.zeros_like(points), torch.ones_like(points)
    off_diagonal: list[Tensor] = []
    for _ in range(count - 1):
        after = points * now - (off_diagonal[-1] * before if off_diagonal else 0)
        off_diagonal.append((weights * after.square()).sum().sqrt())
        before, now = now, after / off_diagonal[-1]
    return _even_rule(torch.stack(off_diagonal) if off_diagonal else points[:0])


def gauss_grid(count: int, power: int, width: int) -> tuple[Tensor, Tensor]:
    """The tensor product of `width` Gauss rules, for means of even functions such as cosines: frequencies
    (ceil(count^width / 2), width) and weights that sum to 1. One of two opposite points is kept, with both weights."""
    nodes, weights = gauss_rule(count, power)
    grid = torch.cartesian_prod(*[nodes] * width).reshape(-1, width)
    product = torch.cartesian_prod(*[weights] * width).reshape(-1, width).prod(1)
    kept = -(-len(grid) // 2)  # the points are sorted: the i-th from the start and the i-th from the end are opposite
    product = 2 * product[:kept]
    if len(grid) % 2:  # the middle point is 0, without a partner
        product[-1] /= 2
    return grid[:kept], product


def _density_points(count: int, power: int) -> tuple[Tensor, Tensor]:
    """`count` Gauss-Legendre points in each of the `power` intervals between knots, weighted by the density."""
    index = torch.arange(1, count, dtype=torch.float64)
    nodes, weights = _even_rule(index / (4 * index.square() - 1).sqrt())  # weights of the mean over [-1, 1]
    middles = torch.arange(1 - power, power, 2, dtype=torch.float64)
    points = (middles[:, None] + nodes).flatten()
    return points, 2 * weights.repeat(power) * spline_density(points, power)


def _even_rule(off_diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of an even probability density from its Jacobi matrix, whose diagonal is 0."""
    matrix = off_diagonal.new_zeros(len(off_diagonal) + 1, len(off_diagonal) + 1)
    matrix = matrix + off_diagonal.diag(1) + off_diagonal.diag(-1) if len(off_diagonal) else matrix
    nodes, vectors = torch.linalg.eigh(matrix)
    weights = vectors[0].square()
    return (nodes - nodes.flip(0)) / 2, (weights + weights.flip(0)) / 2  # exactly even


class CosineFeatures(nn.Module):
    """phi(x), (B, H, N, D) -> (B, H, N, 2 m groups): phi(q).phi(k) is the mean over groups of coordinates g of
    sum_i w_i cos(omega_i . (q_g - k_g)).

    frequencies (m, r) for all heads or (H, m, r) for each; a group is r consecutive coordinates, r = D one group.
    """

    frequencies: Tensor
    amplitudes: Tensor

    def __init__(self, frequencies: Tensor, weights: Tensor):
        super().__init__()
        default = torch.get_default_dtype()
        self.register_buffer("frequencies", frequencies.to(default))
        self.register_buffer("amplitudes", weights.sqrt().repeat(2).to(default))  # of the cosines, then of the sines

    def forward(self, x: Tensor) -> Tensor:
        width = self.frequencies.shape[-1]
        groups = x.shape[-1] // width
        x = x.unflatten(-1, (groups, width)).transpose(2, 3)  # (B, H, groups, N, r)
        frequencies, amplitudes = self.frequencies.to(x.dtype), self.amplitudes.to(x.dtype) / math.sqrt(groups)
        angle = x @ (frequencies[:, None] if frequencies.dim() == 3 else frequencies).mT
        features = torch.cat([angle.cos(), angle.sin()], dim=-1) * amplitudes
        return features.transpose(2, 3).flatten(3)
