"""The law of the Fourier kernel's frequencies against moments, integrals and the kernel itself."""

import math

import pytest
import torch

from fourierformer.attention.engines.spectral import (
    STEP,
    CosineFeatures,
    gauss_grid,
    gauss_rule,
    sample_frequencies,
    spline_cdf,
    spline_density,
    spline_quantile,
)

POWERS = [2, 4, 6]
SAMPLERS = ["iid", "orth", "sobol"]


def sinc_power(z: torch.Tensor, power: int) -> torch.Tensor:
    return torch.sinc(z / math.pi) ** power


def moment(degree: int, power: int) -> float:
    """E (w_1 + ... + w_n)^degree by the binomial theorem, one uniform number after the other."""
    moments = [1.0] + [0.0] * degree
    uniform = [1 / (j + 1) if j % 2 == 0 else 0.0 for j in range(degree + 1)]
    for _ in range(power):
        moments = [sum(math.comb(k, j) * moments[j] * uniform[k - j] for j in range(k + 1)) for k in range(degree + 1)]
    return moments[degree]


def grid(power: int, points: int = 20001) -> torch.Tensor:
    return torch.linspace(-power, power, points, dtype=torch.float64)


@pytest.mark.parametrize("power", [18, 32])  # 2^n (n - 1)! has more than 64 bits
def test_the_law_of_a_high_power_has_its_moments(power):
    nodes, weights = gauss_rule(6, power)
    for degree in (0, 2, 4, 8):
        assert (weights * nodes**degree).sum().item() == pytest.approx(moment(degree, power), rel=1e-11)


def test_the_density_has_the_known_values_at_its_middle():
    zero = torch.zeros(1, dtype=torch.float64)
    for power, value in ((2, 1 / 2), (4, 1 / 3), (6, 11 / 40)):  # triangle, cubic and quintic B-spline over 2
        assert spline_density(zero, power).item() == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize("power", POWERS)
def test_the_kernel_is_the_transform_of_the_density(power):
    t = grid(power)
    for z in (0.0, 0.7, 2.5, 6.0):
        integral = torch.trapezoid(spline_density(t, power) * torch.cos(z * t), t).item()
        assert integral == pytest.approx(sinc_power(torch.tensor(z), power).item(), abs=1e-7)


@pytest.mark.parametrize("power", POWERS)
def test_distribution_and_quantile_belong_to_the_density(power):
    t = grid(power)
    integral = torch.cumulative_trapezoid(spline_density(t, power), t)
    torch.testing.assert_close(spline_cdf(t, power)[1:], integral, rtol=0, atol=1e-7)
    u = torch.tensor([0.0, 1e-4, 0.1, 0.5, 0.77, 1 - 1e-4, 1.0], dtype=torch.float64)
    torch.testing.assert_close(spline_cdf(spline_quantile(u, power), power), u, rtol=1e-5, atol=1e-12)
    assert spline_quantile(u[[0, -1]], power).abs().tolist() == pytest.approx([power, power])
    far = spline_quantile(torch.tensor([1e-12, 1 - 1e-12], dtype=torch.float64), power)
    ends = 2 * (math.factorial(power) * 1e-12) ** (1 / power) - power  # P = (t + n)^n / (2^n n!) near -n
    assert far.tolist() == pytest.approx([ends, -ends], abs=STEP)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_is_unbiased(sampler):
    """300 estimates of K at 7 differences: their means lie within 4 standard errors of the product of sincs.

    The standard errors are small enough to tell K from the Gaussian that resembles it, at the last difference.
    """
    count, width, power, draws = 64, 4, 4, 300
    differences = torch.randn(6, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    differences = torch.cat([0.4 * differences, torch.tensor([[1.8, 0, 0, 0]])])
    exact = sinc_power(differences, power).prod(1)
    estimates = []
    for seed in range(draws):
        frequencies = sample_frequencies(count, width, power, sampler, seed)
        assert frequencies.shape == (count, width)
        estimates.append((differences @ frequencies.T).cos().mean(1))
    estimates = torch.stack(estimates)
    error = estimates.std(0) / math.sqrt(draws)
    assert ((estimates.mean(0) - exact).abs() < 4 * error).all()
    gaussian = (-power / 6 * differences[-1].square().sum()).exp()
    assert (estimates.mean(0)[-1] - gaussian).abs() > 4 * error[-1]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samples_have_the_variance_of_the_law_and_their_seed(sampler):
    frequencies = sample_frequencies(4096, 8, 4, sampler, seed=3)
    assert frequencies.var().item() == pytest.approx(4 / 3, rel=0.03)
    assert frequencies.abs().max() <= 4
    assert torch.equal(frequencies, sample_frequencies(4096, 8, 4, sampler, seed=3))
    assert not torch.equal(frequencies, sample_frequencies(4096, 8, 4, sampler, seed=4))


def test_orthogonal_rows_estimate_better_than_independent_ones():
    """In 16 coordinates, where the rows of a block cover all directions: less than 2/3 of the root mean square."""
    u = torch.full((16,), 0.2, dtype=torch.float64)
    exact = sinc_power(u, 4).prod()
    deviation = {}
    for sampler in ("iid", "orth"):
        frequencies = torch.stack([sample_frequencies(32, 16, 4, sampler, seed) for seed in range(200)])
        deviation[sampler] = ((frequencies @ u).cos().mean(1) - exact).square().mean().sqrt()
    assert deviation["orth"] < 0.67 * deviation["iid"]


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 20])
def test_gauss_rules_are_exact_below_degree_2n_and_not_at_it(power, count):
    nodes, weights = gauss_rule(count, power)
    assert (weights > 0).all()
    assert (nodes.abs() < power).all()
    for degree in range(0, 2 * count, 2):
        assert (weights @ nodes**degree).item() == pytest.approx(moment(degree, power), rel=1e-11)
    assert (weights @ nodes ** (2 * count)).item() < moment(2 * count, power) * (1 - 1e-10)


@pytest.mark.parametrize(("power", "reach"), [(2, 4.0), (4, 1.5), (4, 5.0), (4, 10.0), (6, 3.0)])
def test_the_resolution_rule_keeps_the_kernel_to_one_percent(power, reach):
    """nodes >= n R |u| / 2 + 2, the bound that the mechanism warns at; half the nodes do not."""
    z = torch.linspace(0, reach, 500, dtype=torch.float64)
    needed = math.ceil(power * reach / 2 + 2)

    def error(count: int) -> float:
        nodes, weights = gauss_rule(count, power)
        return ((nodes * z[:, None]).cos() @ weights - sinc_power(z, power)).abs().max().item()

    assert error(needed) < 0.01
    assert error(needed // 2) > 0.05


@pytest.mark.parametrize(("count", "width"), [(12, 1), (13, 1), (8, 2), (9, 2), (5, 3)])
def test_half_the_grid_gives_the_kernel(count, width):
    frequencies, weights = gauss_grid(count, 4, width)
    assert frequencies.shape == (math.ceil(count**width / 2), width)
    assert weights.sum().item() == pytest.approx(1, abs=1e-14)
    u = 0.3 * torch.randn(50, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close((u @ frequencies.T).cos() @ weights, sinc_power(u, 4).prod(1), rtol=0, atol=2e-3)
    nodes, rule = gauss_rule(count, 4)  # the whole grid, coordinate by coordinate
    whole = torch.stack([(u[:, d, None] * nodes).cos() @ rule for d in range(width)]).prod(0)
    torch.testing.assert_close((u @ frequencies.T).cos() @ weights, whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("per_head", [True, False])
@pytest.mark.parametrize("width", [2, 6])
def test_products_of_features_are_the_printed_mean_of_cosines(per_head, width):
    generator = torch.Generator().manual_seed(4)
    q, k = torch.randn(2, 2, 3, 5, 6, generator=generator, dtype=torch.float64)
    frequencies = torch.randn(3, 7, width, generator=generator, dtype=torch.float64)
    weights = torch.rand(7, generator=generator, dtype=torch.float64)
    phi = CosineFeatures(frequencies if per_head else frequencies[0], weights)
    phi.frequencies, phi.amplitudes = phi.frequencies.double(), weights.sqrt().repeat(2)
    frequencies = phi.frequencies if per_head else phi.frequencies.expand(3, 7, width)
    expected = torch.zeros(2, 3, 5, 5, dtype=torch.float64)
    difference = q[:, :, :, None] - k[:, :, None]
    for g in range(6 // width):
        part = difference[..., g * width : (g + 1) * width]
        expected += (torch.einsum("bhnmr,hir->bhnmi", part, frequencies).cos() * weights).sum(-1) * width / 6
    torch.testing.assert_close(phi(q) @ phi(k).mT, expected, rtol=0, atol=1e-12)
