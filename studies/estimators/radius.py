"""The radius of the Fourier estimators: the exponents of theory, cross-validation, and the exact error of a known case.

A normal kernel takes part as one more kernel with R = 1 / bandwidth.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import roots_legendre

from studies.estimators.estimators import Kernel, density, density_on_grid, regression

SEARCH = (0.2, 200.0)  # the best radius is looked for between these two
GRID_SIZE = 24  # neighbours differ by a factor of 1.35
LAST_DEVIATION = 8.5  # a standard normal number lies beyond it with probability 2e-17


def theorem_rate(part: str, power: int | None, dim: int) -> tuple[float, float] | None:
    """(exponent of R, exponent of the error) in N as the theorems state them for m = 1, None where none applies.

    Theorem 1 (density, l >= 4): R ~ N^(1/(D+2)), MISE ~ N^(-2/(D+2)).
    Theorem 2 (regression, l >= 6): R ~ N^(1/(D+4)), MSE ~ N^(-4/(D+4)).
    """
    if power is None or power < {"density": 4, "regression": 6}[part]:
        return None
    return (1 / (dim + 2), -2 / (dim + 2)) if part == "density" else (1 / (dim + 4), -4 / (dim + 4))


def plancherel_rate(power: int | None, dim: int) -> tuple[float, float]:
    """The same two exponents from the kernel's transform near 0, for smooth targets; power None: the normal kernel.

    Squared bias against variance R^D / N: flat (l = 1): no power of R, so 1/N up to logarithms (R then grows like the
    square root of log N: exponent 0); a kink (l = 2): R^-2; a parabola (l >= 3, normal): R^-4.
    """
    if power == 1:
        return 0.0, -1.0
    order = 2 if power == 2 else 4
    return 1 / (dim + order), -order / (dim + order)


def radius_at(rate: tuple[float, float], count: int, first_count: int, first_radius: float) -> float:
    """R = first_radius (N / first_count)^exponent; exponent 0 stands for the square root of log N."""
    exponent = rate[0]
    if exponent == 0:
        return first_radius * math.sqrt(math.log(count) / math.log(first_count))
    return first_radius * (count / first_count) ** exponent


def cross_validated_density_radius(samples: np.ndarray, kernel: Kernel, candidates: np.ndarray) -> float:
    """The candidate with the least  int p^2 - 2/N sum_i p_without_i(y_i), an unbiased guess of MISE less a constant."""

    def error(radius: float) -> float:
        return least_squares_criterion(samples, kernel, radius)

    return float(candidates[_inner_minimum(candidates, error)])


def least_squares_criterion(samples: np.ndarray, kernel: Kernel, radius: float) -> float:
    """The integral by a sum over a grid: exact where the transform is 0 beyond its reach, since p^2 then has no
    frequency above 2 R reach and the spacing is pi / (R reach); cut 4 beyond the data."""
    count, dim = samples.shape
    spacing = math.pi / (radius * min(kernel.reach, 5))  # at 5 every transform is below 0.02
    axis = np.arange(samples.min() - 4, samples.max() + 4, spacing)
    square = (density_on_grid([axis] * dim, samples, radius, kernel) ** 2).sum() * spacing**dim
    own = (radius * kernel.value(np.zeros(1))[0]) ** dim / count
    others = (density(samples, samples, radius, kernel) - own).mean() * count / (count - 1)
    return square - 2 * others


def cross_validated_regression_radius(
    keys: np.ndarray, values: np.ndarray, kernel: Kernel, candidates: np.ndarray
) -> float:
    """The candidate whose prediction of each value from all others is best."""

    def error(radius: float) -> float:
        return ((regression(keys, keys, values, radius, kernel, leave_out_own=True) - values) ** 2).mean()

    return float(candidates[_inner_minimum(candidates, error)])


def least_error_radius(error: Callable[[float], float], bounds: tuple[float, float] = SEARCH) -> float:
    """The radius with the least error: the best of a coarse grid, refined between its two neighbours."""
    grid = np.geomspace(*bounds, GRID_SIZE)
    best = _inner_minimum(grid, error)
    refined = minimize_scalar(
        lambda log_radius: error(math.exp(log_radius)),
        bounds=(math.log(grid[best - 1]), math.log(grid[best + 1])),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return math.exp(refined.x) if refined.fun <= error(grid[best]) else float(grid[best])


def _inner_minimum(radii: np.ndarray, error: Callable[[float], float]) -> int:
    """Index of the radius with the least error. Raises ValueError at an end of them: the minimum may lie beyond it."""
    best = int(np.argmin([error(radius) for radius in radii]))
    if best in (0, len(radii) - 1):
        raise ValueError(
            f"the best radius lies at an end of the range from {radii[0]:g} to {radii[-1]:g}: search a wider range"
        )
    return best


def exact_mise(kernel: Kernel, radius: float, count: int, dim: int, correlation: float = 0.0) -> float:
    """MISE for the normal density with unit variances and one correlation rho >= 0 between any two coordinates.

    By Plancherel, with phi the characteristic function, Sigma the covariance, kappa(t) = prod_d transform(t_d / R):

        (2 pi)^D MISE = int phi^2 (1 - kappa)^2 dt + 1/N int kappa^2 (1 - phi^2) dt
        phi(t)^2 = exp(-t' Sigma t) = exp(-(1 - rho) |t|^2) E cos(sqrt(2 rho) z sum_d t_d),   z standard normal

    Given z, every integral is the D-th power of a one-dimensional one.
    """
    if not 0 <= correlation < 1:
        raise ValueError(f"correlation {correlation}: from 0 to below 1")
    end = min(radius * kernel.reach, 9 / math.sqrt(1 - correlation))  # exp(-9^2) = 7e-36
    frequency = math.sqrt(2 * correlation)
    t, weights = _half_line(end, LAST_DEVIATION * frequency * end)
    z, shares = _standard_normal(dim * frequency * end)
    waves = np.cos(frequency * np.outer(z, t)) * weights * np.exp(-(1 - correlation) * t**2)
    kappa = kernel.transform(t / radius)
    alone = math.pi ** (dim / 2) / math.sqrt(determinant(dim, correlation))
    once, twice = shares @ (waves @ kappa) ** dim, shares @ (waves @ kappa**2) ** dim
    bias = alone - 2 * once + twice
    variance = ((2 * math.pi * radius * kernel.square) ** dim - twice) / count
    return float(bias + variance) / (2 * math.pi) ** dim


def determinant(dim: int, correlation: float) -> float:
    """Of the covariance matrix with unit variances and one correlation."""
    return (1 - correlation) ** (dim - 1) * (1 + (dim - 1) * correlation)


def _half_line(end: float, phase: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes from 0 to `end` and weights that count both halves of an even function, for cosines up to that phase."""
    nodes, weights = _legendre(400 * math.ceil((400 + phase) / 400))
    return end * (nodes + 1) / 2, end * weights


@functools.cache
def _legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    return roots_legendre(count)


def _standard_normal(highest: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for the mean of an even function of a standard normal number.

    `highest`: the function's highest angular frequency. The trapezoidal rule is exact for frequencies below 2 pi / step
    but for the width of the normal density itself.
    """
    if highest == 0:
        return np.zeros(1), np.ones(1)
    step = 2 * math.pi / (highest + LAST_DEVIATION)
    z = np.arange(0, LAST_DEVIATION, step)
    shares = 2 * step * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    shares[0] /= 2
    return z, shares
