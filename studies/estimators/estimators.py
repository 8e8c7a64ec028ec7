"""The generalised Fourier estimators of a density and of a regression function (paper, sections 3.1.1 and 3.2.1).

    p(x) = R^D / N  sum_i prod_d K(R (x_d - y_id)),     K(z) = (sin z / z)^l / A_l,     A_l = int (sin z / z)^l dz
    f(x) = sum_i v_i w_i / sum_i w_i,                   w_i  = prod_d K(R (x_d - y_id))

l = 1 is the Fourier integral estimator, l = 4 what Fourier attention uses. The same two sums with a normal K are the
Gaussian estimators, R = 1 / bandwidth. float64 throughout; at most `chunk` pairs of a point and a sample at once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

POWERS = range(1, 9)
CHUNK = 1 << 20  # pairs: 8 MiB a temporary


@dataclass(frozen=True)
class Kernel:
    """A one-dimensional kernel that integrates to 1."""

    name: str
    value: Callable[[np.ndarray], np.ndarray]  # K(z)
    transform: Callable[[np.ndarray], np.ndarray]  # int K(z) cos(t z) dz, 1 at t = 0
    reach: float  # the transform is 0 beyond it; for the normal kernel exp(-9^2 / 2) = 3e-18
    square: float  # int K(z)^2 dz


def normalizer(power: int) -> float:
    """A_l = pi / (2^(l-1) (l-1)!) sum_k (-1)^k C(l, k) (l - 2k)^(l-1), k = 0 ... l/2."""
    terms = range((power + 1) // 2)  # at l = 2k the term is 0, but for 0^0 there is no l
    total = sum((-1) ** k * math.comb(power, k) * (power - 2 * k) ** (power - 1) for k in terms)
    return math.pi * total / (2 ** (power - 1) * math.factorial(power - 1))


def sinc_power(z: np.ndarray, power: int) -> np.ndarray:
    """(sin z / z)^l, 1 at z = 0."""
    base = np.divide(np.sin(z), z, out=np.ones_like(z), where=z != 0)
    result = base.copy()
    for _ in range(power - 1):  # 25 times faster than base**power
        result *= base
    return result


def spline(t: ArrayLike, power: int) -> np.ndarray:
    """Transform of K = sinc^l / A_l: 2 pi / A_l times the density of the sum of l uniform numbers from [-1, 1].

    That is the B-spline of order l: the indicator of [-1, 1] for l = 1, a triangle for l = 2, 0 beyond |t| = l.
    """
    inside = power - np.abs(np.asarray(t, dtype=float))  # the density is even; near its end the fewest terms cancel
    total = np.zeros_like(inside)
    for k in range(power):
        shifted = inside - 2 * k
        total += (-1) ** k * math.comb(power, k) * np.where(shifted >= 0, np.maximum(shifted, 0) ** (power - 1), 0)
    return 2 * math.pi / normalizer(power) * total / (2**power * math.factorial(power - 1))


def fourier_kernel(power: int) -> Kernel:
    if power not in POWERS:
        raise ValueError(f"power {power}: the estimators take phi(x) = x^l for l = {POWERS[0]} ... {POWERS[-1]}")
    norm = normalizer(power)
    return Kernel(
        f"sinc^{power}",
        lambda z: sinc_power(z, power) / norm,
        lambda t: spline(t, power),
        power,
        normalizer(2 * power) / norm**2,
    )


def gaussian_kernel() -> Kernel:
    norm = math.sqrt(2 * math.pi)
    transform = lambda t: np.exp(-(np.asarray(t) ** 2) / 2)  # noqa: E731
    return Kernel("gaussian", lambda z: transform(z) / norm, transform, 9, 1 / math.sqrt(4 * math.pi))


def density(
    points: np.ndarray, samples: np.ndarray, radius: ArrayLike, kernel: Kernel, chunk: int = CHUNK
) -> np.ndarray:
    """The density at points (M, D) from samples (N, D) -> (M,). radius: one, or one per coordinate."""
    points, samples, radius = _checked(points, samples, radius)
    sums = [weights.sum(1) for weights, _ in _weights(points, samples, radius, kernel, chunk, rescale=False)]
    return np.concatenate(sums) * np.prod(radius) / len(samples)


def density_on_grid(axes: Sequence[np.ndarray], samples: np.ndarray, radius: ArrayLike, kernel: Kernel) -> np.ndarray:
    """The density on the grid of D axes. Its products become a matrix product: G D N sines instead of G^D D N."""
    shape = tuple(len(axis) for axis in axes)
    _, samples, radius = _checked(np.empty((0, len(axes))), samples, radius)
    total = np.zeros((math.prod(shape[:-1]), shape[-1]))
    step = max(1, CHUNK // max(len(total), shape[-1]))
    for start in range(0, len(samples), step):
        part = samples[start : start + step]
        factors = [kernel.value(radius[d] * (np.asarray(axes[d])[:, None] - part[:, d])) for d in range(len(axes))]
        rows = np.ones((1, len(part)))
        for factor in factors[:-1]:
            rows = (rows[:, None, :] * factor).reshape(-1, len(part))
        total += rows @ factors[-1].T
    return total.reshape(shape) * np.prod(radius) / len(samples)


def regression(
    points: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    radius: ArrayLike,
    kernel: Kernel,
    chunk: int = CHUNK,
    leave_out_own: bool = False,
) -> np.ndarray:
    """Nadaraya-Watson (eq. 14) at points (M, D) from keys (N, D) and values (N, ...) -> (M, ...).

    Definition 1 is this with an even power, queries as points and eps = 0. A point without any weight gets 0, as there.
    `leave_out_own`: point i does not use key i (for cross-validation, points = keys).
    """
    points, keys, radius = _checked(points, keys, radius)
    values = np.asarray(values, dtype=float)
    flat = values.reshape(len(keys), -1)
    results = []
    for weights, start in _weights(points, keys, radius, kernel, chunk, rescale=True):
        if leave_out_own:
            rows = np.arange(len(weights))
            weights[rows, start + rows] = 0
        total = weights.sum(1, keepdims=True)
        results.append(weights @ flat / np.where(total == 0, 1.0, total))
    return np.concatenate(results).reshape(len(points), *values.shape[1:])


def _weights(points, samples, radius, kernel: Kernel, chunk: int, rescale: bool):
    """(prod_d K(R_d (x_d - y_d)) of some rows, the first row), over all rows.

    `rescale` divides a row by its largest magnitude after every coordinate: a ratio does not see it, and a product over
    many coordinates does not end below the smallest float.
    """
    step = max(1, chunk // len(samples))
    for start in range(0, len(points), step):
        part = points[start : start + step]
        weights = np.ones((len(part), len(samples)))
        for d in range(points.shape[1]):
            weights *= kernel.value(radius[d] * (part[:, d, None] - samples[:, d]))
            if rescale:
                top = np.abs(weights).max(1, keepdims=True)
                weights /= np.where(top == 0, 1.0, top)
        yield weights, start


def _checked(points, samples, radius) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    points, samples = np.asarray(points, dtype=float), np.asarray(samples, dtype=float)
    if points.ndim != 2 or samples.ndim != 2 or points.shape[1] != samples.shape[1] or not samples.size:
        raise ValueError(
            f"points {points.shape} and samples {samples.shape} must be (M, D) and (N, D), N and D above 0"
        )
    return points, samples, np.broadcast_to(np.asarray(radius, dtype=float), points.shape[1:])


def scott_density(points: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """The baseline that knows correlations, by scipy: bandwidth matrix = N^(-2/(D+4)) x covariance of the samples."""
    from scipy.stats import gaussian_kde

    return gaussian_kde(samples.T)(points.T)


def gaussian_regression(points: np.ndarray, keys: np.ndarray, values: np.ndarray, bandwidth: float) -> np.ndarray:
    """The Nadaraya-Watson baseline over scikit-learn's distances, which it hands out in pieces that fit in memory."""
    from sklearn.metrics import pairwise_distances_chunked

    def averages(distances: np.ndarray, start: int) -> np.ndarray:
        nearest = distances.min(1, keepdims=True)  # the largest weight becomes 1: never 0 / 0
        weights = np.exp((nearest - distances) / (2 * bandwidth**2))
        return weights @ values / weights.sum(1).reshape(-1, *[1] * (values.ndim - 1))

    return np.concatenate(list(pairwise_distances_chunked(points, keys, metric="sqeuclidean", reduce_func=averages)))
