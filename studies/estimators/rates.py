"""Measured errors of the estimators against the number of samples: what Theorems 1 and 2 bound.

Densities are normal mixtures, regression is sum_d sin(2 k_d) / sqrt(D) with normal noise. Every estimator of a cell
sees the same data sets. A radius follows c N^exponent; c is the best radius at the smallest N, on data sets of its own.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from studies.estimators.estimators import (
    Kernel,
    density_on_grid,
    fourier_kernel,
    gaussian_kernel,
    gaussian_regression,
    regression,
    scott_density,
)
from studies.estimators.radius import (
    cross_validated_density_radius,
    cross_validated_regression_radius,
    exact_mise,
    least_error_radius,
    plancherel_rate,
    radius_at,
    theorem_rate,
)

NOISE = 0.5
QUERIES = 100  # points at which a regression is asked for
PILOTS = 8  # at most as many data sets choose a radius
CROSS_VALIDATED = (4, None)
CANDIDATES = np.geomspace(0.4, 24, 12)  # radii that cross-validation chooses from
# D -> (half width, spacing) of the grid that squared errors are summed over. Every data set shifts its grid at random,
# which makes the sum an unbiased guess of the integral whatever the spacing.
GRID = {1: (6.5, 0.05), 2: (6.5, 0.15), 3: (6.5, 0.4)}
WIDE_GRID = {1: (40, 0.2), 2: (24, 0.3), 3: (12, 0.4)}  # l = 1: squared tails fall like 1 / x^2 only


@dataclass(frozen=True)
class Case:
    """An equal mixture of normal distributions with one covariance."""

    name: str
    means: np.ndarray  # (M, D)
    covariance: np.ndarray  # (D, D)

    @property
    def dim(self) -> int:
        return len(self.covariance)

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        normal = rng.normal(size=(count, self.dim)) @ np.linalg.cholesky(self.covariance).T
        return normal + self.means[rng.integers(len(self.means), size=count)]

    @functools.cached_property
    def queries(self) -> np.ndarray:
        """The first draws within one standard deviation of a mean: where keys are rare the bound of Theorem 2, which
        divides by p^2, is large."""
        drawn = self.sample(100 * QUERIES, np.random.default_rng(7))
        return drawn[(self._squared_distances(drawn) < 1).any(-1)][:QUERIES]

    def _squared_distances(self, points: np.ndarray) -> np.ndarray:
        """Mahalanobis's, to every mean: (..., M)."""
        offsets = points[..., None, :] - self.means
        return (offsets @ np.linalg.inv(self.covariance) * offsets).sum(-1)

    def on_grid(self, axes: list[np.ndarray]) -> np.ndarray:
        distances = self._squared_distances(np.stack(np.meshgrid(*axes, indexing="ij"), -1))
        return np.exp(-distances / 2).mean(-1) / math.sqrt(np.linalg.det(2 * math.pi * self.covariance))


def normal(dim: int, correlation: float = 0) -> Case:
    covariance = np.full((dim, dim), correlation) + (1 - correlation) * np.eye(dim)
    return Case("correlated" if correlation else "normal", np.zeros((1, dim)), covariance)


def bimodal() -> Case:
    return Case("bimodal", np.array([[-1.5], [1.5]]), np.array([[0.49]]))


def kernel_of(power: int | None) -> Kernel:
    return gaussian_kernel() if power is None else fourier_kernel(power)


@dataclass
class Row:
    """The errors of one estimator at one number of samples, one a data set."""

    part: str  # density: integrated squared error; regression: mean squared error over the queries
    case: str
    dim: int
    correlation: float
    kernel: str
    rule: str
    count: int
    radius: float
    exact: float | None = None
    errors: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return float(np.mean(self.errors))

    @property
    def standard_error(self) -> float:
        return float(np.std(self.errors, ddof=1) / math.sqrt(len(self.errors)))


def shifted_axes(shift: np.ndarray, kernel_name: str) -> list[np.ndarray]:
    width, spacing = (WIDE_GRID if kernel_name == "sinc^1" else GRID)[len(shift)]
    return [spacing * (np.arange(-width / spacing, width / spacing) + part) for part in shift]


def integrated_squared_error(
    case: Case, samples: np.ndarray, shift: np.ndarray, radius: float, kernel: Kernel
) -> float:
    axes = shifted_axes(shift, kernel.name)
    gap = density_on_grid(axes, samples, radius, kernel) - case.on_grid(axes)
    return float((gap**2).sum() * (axes[0][1] - axes[0][0]) ** case.dim)


def target(keys: np.ndarray) -> np.ndarray:
    return np.sin(2 * keys).sum(1) / math.sqrt(keys.shape[1])


def draw(part: str, case: Case, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Keys, and what else the error needs: the shift of the grid, or the values."""
    keys = case.sample(count, rng)
    return keys, rng.random(case.dim) if part == "density" else target(keys) + NOISE * rng.normal(size=count)


def error(part: str, case: Case, data: tuple[np.ndarray, np.ndarray], radius: float, kernel: Kernel) -> float:
    if part == "density":
        return integrated_squared_error(case, *data, radius, kernel)
    points = case.queries
    return float(((regression(points, *data, radius, kernel) - target(points)) ** 2).mean())


def best_radius(part: str, case: Case, count: int, kernel: Kernel, data_sets: int) -> tuple[float, list[float]]:
    """The radius with the least mean error over fresh data sets, and its errors."""
    sets = [draw(part, case, count, np.random.default_rng([1, i])) for i in range(data_sets)]

    def errors(radius: float) -> list[float]:
        return [error(part, case, data, radius, kernel) for data in sets]

    best = least_error_radius(lambda radius: float(np.mean(errors(radius))))
    return best, errors(best)


def rates(
    part: str, case: Case, counts: list[int], powers: list[int | None], data_sets: int, cross_validated: int
) -> Iterator[Row]:
    """Rows for every power (None: Gaussian) under every rule; by cross-validation up to `cross_validated` samples."""
    pilots = min(data_sets, PILOTS)
    starts = {power: best_radius(part, case, counts[0], kernel_of(power), pilots)[0] for power in powers}
    for count in counts:
        sets = [draw(part, case, count, np.random.default_rng([2, count, i])) for i in range(data_sets)]
        for power in powers:
            kernel = kernel_of(power)
            for rule, rate in rules(part, power, case.dim).items():
                radius = radius_at(rate, count, counts[0], starts[power])
                row = _row(part, case, kernel, rule, count, radius)
                row.errors = [error(part, case, data, radius, kernel) for data in sets]
                yield row
            if count <= cross_validated and power in CROSS_VALIDATED:
                yield cross_validated_row(part, case, kernel, count, sets)


def rules(part: str, power: int | None, dim: int) -> dict[str, tuple[float, float]]:
    """The Plancherel rule, and the theorem's where it applies and says something else."""
    found = {"plancherel": plancherel_rate(power, dim)}
    stated = theorem_rate(part, power, dim)
    if stated and stated != found["plancherel"]:
        found["theorem"] = stated
    return found


def cross_validated_row(
    part: str, case: Case, kernel: Kernel, count: int, sets: list[tuple[np.ndarray, np.ndarray]]
) -> Row:
    if part == "density":
        radii = [cross_validated_density_radius(keys, kernel, CANDIDATES) for keys, _ in sets]
    else:
        radii = [cross_validated_regression_radius(*data, kernel, CANDIDATES) for data in sets]
    row = _row(part, case, kernel, "cross-validation", count, float(np.mean(radii)))
    row.exact = None  # its radius differs from data set to data set
    row.errors = [error(part, case, data, radius, kernel) for data, radius in zip(sets, radii, strict=True)]
    return row


def _row(part: str, case: Case, kernel: Kernel, rule: str, count: int, radius: float) -> Row:
    correlation = float(case.covariance[0, -1] / case.covariance[0, 0]) if case.dim > 1 else 0.0
    known = part == "density" and case.name != "bimodal"
    exact = exact_mise(kernel, radius, count, case.dim, correlation) if known else None
    return Row(part, case.name, case.dim, correlation, kernel.name, rule, count, radius, exact)


def correlated_features(
    part: str, dim: int, correlation: float, count: int, powers: list[int | None], data_sets: int
) -> Iterator[Row]:
    """Argument (i) of the paper: each estimator at its best radius; None is the isotropic Gaussian.

    "whitened" is the Gaussian that knows the covariance of the samples: Scott's rule for a density, and for a
    regression the best bandwidth after the keys were made uncorrelated.
    """
    case = normal(dim, correlation)
    for power in powers:
        kernel = kernel_of(power)
        radius, errors = best_radius(part, case, count, kernel, data_sets)
        row = _row(part, case, kernel, "best", count, radius)
        row.errors = errors
        yield row
    row = Row(part, case.name, dim, correlation, "gaussian, whitened", "best", count, math.nan)
    sets = [draw(part, case, count, np.random.default_rng([1, i])) for i in range(data_sets)]
    if part == "density":
        row.rule, row.errors = "scott", [_scott_error(case, *data) for data in sets]
    else:
        row.radius, row.errors = _whitened(case, sets)
    yield row


def _scott_error(case: Case, samples: np.ndarray, shift: np.ndarray) -> float:
    axes = shifted_axes(shift, "gaussian")
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, case.dim)
    gap = scott_density(points, samples) - case.on_grid(axes).ravel()
    return float((gap**2).sum() * (axes[0][1] - axes[0][0]) ** case.dim)


def _whitened(case: Case, sets: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, list[float]]:
    points = case.queries
    whitenings = [np.linalg.inv(np.linalg.cholesky(np.cov(keys.T))).T for keys, _ in sets]

    def errors(radius: float) -> list[float]:
        predictions = (
            gaussian_regression(points @ white, keys @ white, values, 1 / radius)
            for (keys, values), white in zip(sets, whitenings, strict=True)
        )
        return [float(((prediction - target(points)) ** 2).mean()) for prediction in predictions]

    best = least_error_radius(lambda radius: float(np.mean(errors(radius))))
    return best, errors(best)


def slope(rows: list[Row]) -> tuple[float, float]:
    """Least-squares slope of log error against log N, and its standard error by leaving out one data set at a time."""
    counts = np.log([row.count for row in rows])
    errors = np.array([row.errors for row in rows])  # (N, data sets)

    def fit(kept: np.ndarray) -> float:
        return float(np.polyfit(counts, np.log(kept.mean(1)), 1)[0])

    left = [fit(np.delete(errors, i, axis=1)) for i in range(errors.shape[1])]
    return fit(errors), float(np.std(left) * math.sqrt(len(left) - 1))
