"""Exact errors under correlation against closed forms, plain quadrature, Monte Carlo and the theory for large N."""

import math

import numpy as np
import pytest

from studies.estimators.correlations import FULL_COVARIANCE, GAUSSIAN, best_errors
from studies.estimators.estimators import density_on_grid, fourier_kernel, gaussian_kernel
from studies.estimators.radius import cross_validated_density_radius, exact_mise, least_error_radius

CORRELATIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def equicorrelated(dim: int, correlation: float) -> np.ndarray:
    return np.full((dim, dim), correlation) + (1 - correlation) * np.eye(dim)


def normal_kernel_mise(covariance: np.ndarray, bandwidth: np.ndarray, samples: int) -> float:
    """Wand and Jones, Kernel Smoothing, section 4.4.1, for a normal density and any bandwidth matrix H:

    MISE = (4 pi)^(-D/2) |H|^(-1/2) / N
           + (2 pi)^(-D/2) [(1 - 1/N) |2 H + 2 Sigma|^(-1/2) - 2 |H + 2 Sigma|^(-1/2) + |2 Sigma|^(-1/2)]
    """
    dim = len(covariance)
    peak = lambda matrix: np.linalg.det(matrix) ** -0.5  # noqa: E731
    both = (1 - 1 / samples) * peak(2 * bandwidth + 2 * covariance)
    bias = (both - 2 * peak(bandwidth + 2 * covariance) + peak(2 * covariance)) / (2 * math.pi) ** (dim / 2)
    return peak(bandwidth) / (4 * math.pi) ** (dim / 2) / samples + bias


def least_normal_kernel_mise(covariance: np.ndarray, shape: np.ndarray, samples: int) -> float:
    """The least over bandwidth matrices h^2 shape, by a grid in which neighbours differ by 0.2 %."""
    return min(normal_kernel_mise(covariance, h**2 * shape, samples) for h in np.geomspace(0.01, 2, 2600))


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
@pytest.mark.parametrize("correlation", CORRELATIONS)
def test_the_isotropic_gaussian_has_the_error_of_the_closed_form(dim, correlation):
    for h in (0.05, 0.3, 1.0):
        for samples in (100, 100_000):
            closed = normal_kernel_mise(equicorrelated(dim, correlation), h**2 * np.eye(dim), samples)
            assert exact_mise(gaussian_kernel(), 1 / h, samples, dim, correlation) == pytest.approx(closed, rel=1e-6)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(
    "correlation",
    [
        value if value in (0.0, 0.5, 0.99) else pytest.param(value, marks=pytest.mark.full("between two others"))
        for value in CORRELATIONS
    ],
)
def test_both_gaussians_reach_the_least_error_of_the_closed_form(dim, correlation):
    covariance = equicorrelated(dim, correlation)
    found = {best.kernel: best for best in best_errors(dim, correlation, 1000, powers=[])}
    isotropic = least_normal_kernel_mise(covariance, np.eye(dim), 1000)
    full = least_normal_kernel_mise(covariance, covariance, 1000)
    assert found[GAUSSIAN].mise == pytest.approx(isotropic, rel=1e-4)
    assert found[FULL_COVARIANCE].mise == pytest.approx(full, rel=1e-4)
    assert found[FULL_COVARIANCE].ratio == pytest.approx(full / isotropic, rel=1e-4)


def test_a_linear_map_divides_the_error_of_the_full_covariance_by_its_determinant():
    """y = A x has the density of x over |A|: the squared difference falls by |A|^2, the volume grows by |A|."""
    errors = [list(best_errors(3, correlation, 1000, powers=[]))[-1].mise for correlation in CORRELATIONS]
    volumes = [math.sqrt(np.linalg.det(equicorrelated(3, correlation))) for correlation in CORRELATIONS]
    assert np.multiply(errors, volumes) == pytest.approx(errors[0], rel=1e-9)


@pytest.mark.parametrize(
    ("power", "dim", "correlation", "tolerance"), [(4, 2, 0.75, 1e-6), (4, 3, 0.5, 1e-5), (1, 2, 0.75, 1e-4)]
)
def test_fourier_kernels_agree_with_a_plain_sum_over_all_frequencies(power, dim, correlation, tolerance):
    radius, samples, step = 2.0, 1000, {2: 0.02, 3: 0.125}[dim]
    axis = np.arange(-12 if dim == 2 else -9, 12 if dim == 2 else 9, step) + step / 2
    t = np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), -1)
    squared = np.exp(-((t @ equicorrelated(dim, correlation)) * t).sum(-1))
    kappa = np.prod([fourier_kernel(power).transform(t[..., d] / radius) for d in range(dim)], axis=0)
    integrand = squared * (1 - kappa) ** 2 + (1 - squared) * kappa**2 / samples
    mise = integrand.sum() * (step / (2 * math.pi)) ** dim
    assert exact_mise(fourier_kernel(power), radius, samples, dim, correlation) == pytest.approx(mise, rel=tolerance)


def test_sinc_4_has_the_mean_error_of_simulated_data():
    """150 data sets of 200 samples. p_N^2 has no frequency above 8 R = 28: a grid of 0.15 sums it exactly."""
    rng, kernel, radius, correlation = np.random.default_rng(4), fourier_kernel(4), 3.5, 0.9
    covariance, axis = equicorrelated(2, correlation), np.arange(-8, 8, 0.15)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    distances = ((points @ np.linalg.inv(covariance)) * points).sum(-1)
    truth = np.exp(-distances / 2) / (2 * math.pi * math.sqrt(np.linalg.det(covariance)))
    errors = []
    for _ in range(150):
        samples = rng.multivariate_normal(np.zeros(2), covariance, size=200)
        errors.append(((density_on_grid([axis, axis], samples, radius, kernel) - truth) ** 2).sum() * 0.15**2)
    error = np.std(errors, ddof=1) / math.sqrt(len(errors))
    assert error < 0.05 * np.mean(errors)
    assert np.mean(errors) == pytest.approx(exact_mise(kernel, radius, 200, 2, correlation), abs=3 * error)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_for_large_samples_correlation_does_not_enter_the_ratio_of_sinc_4_and_gaussian(correlation):
    """To leading order, a product kernel of second moment mu2 has MISE = (R int K^2)^D / N + R^-4 mu2^2 / 4
    int (Laplacian p)^2: at the best R it enters as [(int K^2)^(4 D) mu2^(2 D)]^(1 / (D + 4)), whatever p is."""
    dim, square, moment = 2, (151 * math.pi / 315) / (2 * math.pi / 3) ** 2, 3 / 4
    limit = ((square * 2 * math.sqrt(math.pi)) ** (4 * dim) * moment ** (2 * dim)) ** (1 / (dim + 4))
    ratios = {
        samples: next(best.ratio for best in best_errors(dim, correlation, samples, [4]) if best.kernel == "sinc^4")
        for samples in (10**4, 10**6, 10**10)
    }
    gaps = [abs(ratio / limit - 1) for ratio in ratios.values()]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.015


@pytest.mark.parametrize("power", [1, 4])
def test_the_error_for_the_smallest_and_the_largest_radius(power):
    """R to 0: the estimate is 0 and MISE = int p^2. R to infinity: N MISE = (R int K^2)^D - int p^2, no bias."""
    kernel, correlation, samples = fourier_kernel(power), 0.75, 50
    square = 1 / ((4 * math.pi) * math.sqrt(np.linalg.det(equicorrelated(2, correlation))))
    assert exact_mise(kernel, 1e-5, samples, 2, correlation) == pytest.approx(square, rel=1e-6)
    largest = ((1e4 * kernel.square) ** 2 - square) / samples
    assert exact_mise(kernel, 1e4, samples, 2, correlation) == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("correlation", [-0.1, 1.0])
def test_a_correlation_without_a_density_of_this_kind_is_refused(correlation):
    with pytest.raises(ValueError, match="from 0 to below 1"):
        exact_mise(gaussian_kernel(), 1.0, 100, 2, correlation)


def test_the_search_finds_a_minimum_inside_its_range():
    assert least_error_radius(lambda radius: math.log(radius / 11.9) ** 2) == pytest.approx(11.9, rel=1e-3)
    two = lambda radius: min(1 + math.log(radius / 0.7) ** 2, math.log(radius / 60) ** 2)  # noqa: E731
    assert least_error_radius(two) == pytest.approx(60, rel=1e-3)


def test_the_search_does_not_end_at_an_edge_unnoticed():
    parabola = lambda radius: math.log(radius / 11.9) ** 2  # noqa: E731
    for bounds in ((0.4, 8.0), (20.0, 80.0)):
        with pytest.raises(ValueError, match="search a wider range"):
            least_error_radius(parabola, bounds)
    samples = np.random.default_rng(1).normal(size=(400, 1))
    with pytest.raises(ValueError, match="search a wider range"):
        cross_validated_density_radius(samples, fourier_kernel(4), np.geomspace(0.3, 0.9, 4))
