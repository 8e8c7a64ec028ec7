"""The Fourier estimators against integrals, limits, scipy and the attention they stand behind."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import gaussian_kde
from sklearn.neighbors import KernelDensity

from fourierformer.kernels.sinc import sinc_attention
from studies.estimators.estimators import (
    POWERS,
    density,
    density_on_grid,
    fourier_kernel,
    gaussian_kernel,
    gaussian_regression,
    normalizer,
    regression,
    scott_density,
    spline,
)
from studies.estimators.radius import cross_validated_density_radius, exact_mise, plancherel_rate, theorem_rate
from studies.estimators.rates import Row, slope

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("power", "value"),
    [
        (1, math.pi),
        (2, math.pi),
        (3, 3 * math.pi / 4),
        (4, 2 * math.pi / 3),
        (5, 115 * math.pi / 192),
        (6, 11 * math.pi / 20),
        (7, 5887 * math.pi / 11520),
        (8, 151 * math.pi / 315),
    ],
)
def test_normalizers_are_the_known_integrals(power, value):
    assert normalizer(power) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("power", [p for p in POWERS if p >= 3])
def test_the_spline_is_the_kernels_transform(power):
    kernel = fourier_kernel(power)
    for t in (0.0, 0.7, 1.9, power + 0.5):
        integral = 2 * quad(lambda z, t=t: kernel.value(np.array([z]))[0] * math.cos(t * z), 0, 400, limit=2000)[0]
        assert spline(t, power) == pytest.approx(integral, abs=2e-5)


def test_power_one_passes_every_frequency_up_to_its_radius_and_none_beyond():
    assert spline([0.0, 0.5, 0.99], 1) == pytest.approx(1.0)
    assert spline([1.01, 3.0], 1) == pytest.approx(0.0)


@pytest.mark.parametrize(("power", "moment"), [(4, 3 / 4), (6, 5 / 11), (8, 0.3476821192)])
def test_second_moments_are_the_curvature_of_the_transform(power, moment):
    step = 1e-3
    assert -(spline(step, power) - 2 + spline(-step, power)) / step**2 == pytest.approx(moment, rel=1e-3)


@pytest.mark.parametrize("power", [2, 4, 6])
def test_a_density_integrates_to_one(power):
    samples = RNG.normal(size=(40, 1))
    axis = np.linspace(-400, 400, 200_001)
    values = density(axis[:, None], samples, 2.0, fourier_kernel(power))
    assert values.sum() * (axis[1] - axis[0]) == pytest.approx(1.0, abs=2e-3)
    assert values.min() >= 0


def test_a_grid_is_the_same_as_its_points():
    samples, axes = RNG.normal(size=(300, 2)), [np.linspace(-2, 2, 7), np.linspace(-1, 3, 5)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    kernel = fourier_kernel(4)
    one = density_on_grid(axes, samples, 1.5, kernel).ravel()
    assert one == pytest.approx(density(points, samples, 1.5, kernel), rel=1e-12)
    assert one == pytest.approx(density(points, samples, 1.5, kernel, chunk=700), rel=1e-12)


@pytest.mark.parametrize("power", [2, 4, 6])
def test_the_regression_is_fourier_attention(power):
    q, k, v = RNG.normal(size=(9, 3)), RNG.normal(size=(20, 3)), RNG.normal(size=(20, 4))
    tensors = [torch.from_numpy(x)[None, None] for x in (q, k, v)]
    attention = sinc_attention(
        *tensors, torch.tensor(1.3, dtype=torch.float64), power=power, eps=0.0, causal=False, backend="reference"
    )
    assert regression(q, k, v, 1.3, fourier_kernel(power)) == pytest.approx(attention[0, 0].numpy(), rel=1e-9)
    assert regression(q, k, v, 1.3, fourier_kernel(power), chunk=45) == pytest.approx(attention[0, 0].numpy(), rel=1e-9)


def test_a_constant_function_is_returned_as_it_is():
    points, keys = RNG.normal(size=(5, 2)), RNG.normal(size=(30, 2))
    assert regression(points, keys, np.full(30, 2.5), 2.0, fourier_kernel(4)) == pytest.approx(2.5, rel=1e-14)


@pytest.mark.parametrize("power", [4, 6])
def test_a_small_radius_is_gaussian_regression(power):
    """Near 0, sinc^l(x) = exp(-l x^2 / 6): a normal weight of variance 3 / (l R^2)."""
    points, keys, values = RNG.normal(size=(5, 2)), RNG.normal(size=(50, 2)), RNG.normal(size=50)
    radius = 0.02
    gaussian = gaussian_regression(points, keys, values, math.sqrt(3 / power) / radius)
    plain = values.mean()
    found = regression(points, keys, values, radius, fourier_kernel(power))
    assert found - plain == pytest.approx(gaussian - plain, rel=1e-2)
    assert np.abs(found - plain).max() > 1e-6


def test_gaussian_baselines_agree_with_scikit_learn_and_with_scipy():
    points, samples = RNG.normal(size=(6, 2)), RNG.normal(size=(80, 2))
    ours = density(points, samples, 1 / 0.4, gaussian_kernel())
    assert np.exp(KernelDensity(bandwidth=0.4).fit(samples).score_samples(points)) == pytest.approx(ours, rel=1e-10)
    assert scott_density(points, samples) == pytest.approx(gaussian_kde(samples.T)(points.T))


def test_a_band_limited_density_is_estimated_without_bias_by_power_one():
    """Fejer's density (1 - cos x) / (pi x^2) has no frequency above 1: E p_N = p for every R >= 1, so the mean over
    many samples is right within its standard error at R = 1.2 and is not at R = 0.5."""
    rng = np.random.default_rng(5)
    wide = rng.standard_cauchy(500_000)  # by rejection: p over Cauchy's density is (1 - cos x)(1 + x^2) / x^2 < 4
    share = (1 - np.cos(wide)) * (1 + wide**2) / (4 * wide**2)
    samples = wide[rng.uniform(size=len(wide)) < share][:100_000, None]
    points = np.array([[0.5], [1.0], [2.0]])
    truth = (1 - np.cos(points[:, 0])) / (math.pi * points[:, 0] ** 2)
    kernel = fourier_kernel(1)
    values = 1.2 * kernel.value(1.2 * (points - samples.T))
    error = values.std(1) / math.sqrt(len(samples))
    assert np.abs(values.mean(1) - truth).max() < 5 * error.max()
    assert np.abs(density(points, samples, 0.5, kernel) - truth).max() > 10 * error.max()


def test_the_exact_error_of_a_known_case():
    """Silverman: for a normal kernel of bandwidth h and N standard normal samples in one dimension, MISE =
    [1 - 2 (1 + h^2/2)^-1/2 + (1 - 1/N) (1 + h^2)^-1/2 + 1/(N h)] / (2 sqrt(pi))."""
    count, h = 200, 0.5
    mise = 1 - 2 / math.sqrt(1 + h**2 / 2) + (1 - 1 / count) / math.sqrt(1 + h**2) + 1 / (count * h)
    assert exact_mise(gaussian_kernel(), 1 / h, count, 1) == pytest.approx(mise / (2 * math.sqrt(math.pi)), rel=1e-6)


ANOTHER = pytest.mark.full("another power of the same formula")


@pytest.mark.parametrize("power", [pytest.param(2, marks=ANOTHER), 4, pytest.param(8, marks=ANOTHER)])
def test_the_exact_error_is_the_mean_over_data_sets(power):
    """Monte Carlo: 300 data sets of 60 samples, integrated on a grid."""
    rng, kernel, radius = np.random.default_rng(2), fourier_kernel(power), 1.5
    axis = np.linspace(-60, 60, 6001)
    truth = np.exp(-(axis**2) / 2) / math.sqrt(2 * math.pi)
    errors = []
    for _ in range(300):
        found = density_on_grid([axis], rng.normal(size=(60, 1)), radius, kernel)
        errors.append(((found - truth) ** 2).sum() * (axis[1] - axis[0]))
    error = np.std(errors) / math.sqrt(len(errors))
    assert np.mean(errors) == pytest.approx(exact_mise(kernel, radius, 60, 1), abs=4 * error)


def power_law(count: int, errors: np.ndarray) -> Row:
    return Row("density", "normal", 1, 0.0, "sinc^4", "theorem", count, 1.0, errors=list(errors))


def test_the_slope_of_a_power_law_is_its_exponent():
    counts = [100, 200, 400, 800]
    noise = np.random.default_rng(3).lognormal(sigma=0.05, size=(4, 30))
    rows = [power_law(count, 7.0 * count**-0.8 * noise[i]) for i, count in enumerate(counts)]
    found, error = slope(rows)
    assert abs(found + 0.8) < 4 * error < 0.1
    assert slope([power_law(count, np.full(3, count**-0.5)) for count in counts])[0] == pytest.approx(-0.5)


def test_exponents_are_the_theorems():
    assert theorem_rate("density", 4, 3) == pytest.approx((1 / 5, -2 / 5))
    assert theorem_rate("regression", 6, 2) == pytest.approx((1 / 6, -2 / 3))
    assert theorem_rate("regression", 4, 2) is None  # the power of all experiments is not covered
    assert theorem_rate("density", 3, 1) is None
    assert plancherel_rate(4, 1) == pytest.approx((1 / 5, -4 / 5))
    assert plancherel_rate(2, 2)[1] == pytest.approx(-1 / 2)


def test_cross_validation_finds_a_radius_near_the_best():
    samples, candidates = np.random.default_rng(1).normal(size=(400, 1)), np.geomspace(0.3, 10, 12)
    kernel = fourier_kernel(4)
    chosen = cross_validated_density_radius(samples, kernel, candidates)
    errors = {radius: exact_mise(kernel, radius, 400, 1) for radius in candidates}
    assert errors[chosen] < 2.5 * min(errors.values())
    assert max(errors.values()) > 10 * min(errors.values())
