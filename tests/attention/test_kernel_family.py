"""Mechanisms around kernel regression: each against its formula in a plain loop in float64, and its limits."""

import itertools
import math

import pytest
import torch
from scipy.integrate import dblquad
from scipy.optimize import brentq

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines.log_kernel import LogKernel
from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import EXACT, layer_of, projected, softmax_row, tokens

BOTH = pytest.mark.parametrize("causal", [True, False])


def rows(layer, causal, n=7):
    """(head, q, keys, values, output) of each query: the keys that it sees."""
    q, k, v, mixed = projected(layer, tokens(n, batch=1, width=layer.geometry.dim))
    for h, i in itertools.product(range(q.shape[1]), range(n)):
        seen = i + 1 if causal else n
        yield h, q[0, h, i], k[0, h, :seen], v[0, h, :seen], mixed[0, h, i]


def sinc_weights(q, k, radius, power=4):
    return torch.sinc(radius * (q - k) / math.pi).pow(power).prod(-1)


# -- null keys ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("name", "kernel"), [("softmax1", "dot"), ("sink", "dot"), ("sink", "gaussian")])
def test_a_null_key_is_one_more_term_of_the_sum(name, kernel, causal):
    layer = layer_of(name, causal, kernel=kernel)
    for h, q, k, v, y in rows(layer, causal):
        weights = (k @ q / 8**0.5 if kernel == "dot" else -(q - k).square().sum(-1) / (2 * 8**0.5)).exp()
        null = 1.0 if name == "softmax1" else layer.logit[h].exp()
        torch.testing.assert_close(y, weights @ v / (null + weights.sum()), **EXACT)


@BOTH
def test_a_learned_eps_is_fouriers_eps(causal):
    layer = layer_of("fourier_sink", causal)
    for h, q, k, v, y in rows(layer, causal):
        weights = sinc_weights(q, k, layer.log_kernel.radius)
        torch.testing.assert_close(y, weights @ v / (layer.log_eps[h].exp() + weights.sum()), **EXACT)


def test_it_starts_as_fourier_attention():
    geometry = Geometry(dim=16, heads=2, length=9, causal=True)
    learned = attention.build("fourier_sink", geometry, eps=1e-3).double()
    fixed = attention.build("fourier", geometry, eps=1e-3, radius="matched").double()
    fixed.load_state_dict({k: v for k, v in learned.state_dict().items() if k in fixed.state_dict()}, strict=False)
    torch.testing.assert_close(learned(tokens(9)), fixed(tokens(9)), rtol=0, atol=1e-6)  # log eps in float32


def test_without_a_null_key_it_is_softmax_and_where_all_is_far_it_is_nothing():
    layer, softmax = layer_of("sink", True), layer_of("softmax", True)
    softmax.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        layer.logit.fill_(-200.0)
        torch.testing.assert_close(layer(tokens(9)), softmax(tokens(9)), **EXACT)
        q, k, v = (
            torch.ones(1, 2, 1, 8).double(),
            -100 * torch.ones(1, 2, 5, 8).double(),
            torch.ones(1, 2, 5, 8).double(),
        )
        layer.logit.zero_()
        assert layer.mix(q, k, v, v).abs().max() < 1e-100


def test_the_attended_share_is_that_of_the_last_query():
    layer, x = layer_of("softmax1", True), tokens(9)
    layer.train()
    layer.eval()
    layer(x)
    q, k, _ = layer.project(x)
    assert layer.diagnostics() == {"attended_share": pytest.approx(layer.maps(q, k)[:, :, -1].sum(-1).mean().item())}


def test_gradients_of_the_sinc_product():
    """Against autograd of the formula."""
    kernel = LogKernel("sinc", radius=0.7).double()
    q, k = (torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    grads = []
    for formula in (kernel, lambda q, k: sinc_weights(q[:, :, None], k[:, None], kernel.radius).log()):
        leaves = [q.clone().requires_grad_(), k.clone().requires_grad_()]
        value = (formula(*leaves) * torch.arange(50.0).double().view(2, 5, 5)).sum()
        grads.append([value, *torch.autograd.grad(value, [*leaves, kernel.radius])])
    for own, expected in zip(*grads, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)


# -- discs in frequency ------------------------------------------------------------------------------------------------


def disc_weights(q, k, radius, power=4):
    r = (q - k).unflatten(-1, (-1, 2)).norm(dim=-1) * radius
    return (2 * torch.special.bessel_j1(r) / r).pow(power).prod(-1)


@BOTH
@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_discs_in_frequency(causal, eps):
    layer = layer_of("fourier_disc", causal, eps=eps)
    for _, q, k, v, y in rows(layer, causal):
        weights = disc_weights(q, k, layer.log_kernel.radius)
        torch.testing.assert_close(y, weights @ v / (eps + weights.sum()), rtol=0, atol=1e-8)


@pytest.mark.parametrize("u", [(0.3, 0.0), (1.0, -2.0), (4.0, 3.0)])
def test_a_disc_is_the_fourier_integral_over_a_disc(u):
    """integral of cos(w.u) over |w| <= R, by quadrature, relative to the area of the disc."""
    radius, kernel = 1.3, LogKernel("disc", radius=1.3, power=1).double()

    def integrand(angle, length):
        return length * math.cos(length * (u[0] * math.cos(angle) + u[1] * math.sin(angle)))

    integral, _ = dblquad(integrand, 0, radius, 0, 2 * math.pi, epsabs=1e-10)
    point, origin = torch.tensor([[u], [(0.0, 0.0)]], dtype=torch.float64)
    assert kernel(point[None], origin[None]).exp().item() == pytest.approx(
        abs(integral) / (math.pi * radius**2), abs=1e-7
    )


def test_near_zero_a_disc_is_as_wide_as_a_square():
    q, k = 0.1 * torch.randn(2, 1, 50, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    disc, square = LogKernel("disc", radius=0.5 * (4 / 3) ** 0.5).double(), LogKernel("sinc", radius=0.5).double()
    torch.testing.assert_close(disc(q, k), square(q, k), rtol=2e-3, atol=0)


def test_gradients_of_the_disc_product():
    kernel = LogKernel("disc", radius=1.7, power=4).double()
    q, k = (2 * torch.randn(1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    k[0, 0] = q[0, 0] + 1e-3  # by the series
    torch.autograd.gradcheck(lambda *leaves: kernel(*leaves), (q.requires_grad_(), k.requires_grad_()))
    (slope,) = torch.autograd.grad(kernel(q, k).sum(), kernel.radius)
    values = []
    for change in (1e-6, -1e-6):
        with torch.no_grad():
            kernel.radius.add_(change)
            values.append(kernel(q, k).sum().item())
            kernel.radius.sub_(change)
    assert slope.item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "invariant"), [("fourier_disc", True), ("gaussian", True), ("fourier_matched", False)]
)
def test_rotations_of_pairs_of_coordinates(name, invariant):
    """Rotary positions rotate q and k of positions i and j by multiples of i and j: only i - j may matter."""
    layer = layer_of(name)
    with torch.no_grad():
        for parameter in (p for n, p in layer.named_parameters() if n.endswith("radius")):
            parameter.fill_(1.0)
    q, k = (torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))

    def rotated(x, first):
        angles = (torch.arange(6)[:, None] + first) * 10000.0 ** (-torch.arange(4) / 4)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones(()), angles)
        return torch.view_as_real(pairs).flatten(-2)

    maps = [layer.maps(rotated(q, first), rotated(k, first)) for first in (0, 17)]
    assert ((maps[0] - maps[1]).abs().max() < 1e-6) == invariant


# -- weights of single keys --------------------------------------------------------------------------------------------


@BOTH
def test_weights_of_single_keys(causal):
    formulas = {
        "sigmoid": lambda z: 1 / (1 + 40 * (-z).exp()),
        "relu_attention": lambda z: z.clamp_min(0) / 40,
        "softpick": lambda z: (z.exp() - 1).clamp_min(0) / (z.exp() - 1).abs().sum(),
    }
    for name, formula in formulas.items():
        for _, q, k, v, y in rows(layer_of(name, causal), causal):
            tolerance = 1e-7 if name == "softpick" else 1e-10  # softpick adds 1e-8 to its sum
            torch.testing.assert_close(y, formula(k @ q / 8**0.5) @ v, rtol=tolerance, atol=tolerance)


def test_relu_by_visible_keys_and_squared():
    for _, q, k, v, y in rows(layer_of("relu_attention", True, power=2, divide="visible"), True):
        torch.testing.assert_close(y, (k @ q / 8**0.5).clamp_min(0).square() @ v / len(k), **EXACT)


def test_sigmoid_at_logits_of_zero():
    """n keys of a model of that length: n / (n + 1) of the mean."""
    layer = attention.build("sigmoid", Geometry(dim=16, heads=2, length=9, causal=False)).double()
    k = torch.zeros(1, 2, 9, 8).double()
    torch.testing.assert_close(layer.maps(k, k).sum(-1), torch.full((1, 2, 9), 0.9, dtype=torch.float64), **EXACT)


def test_softpick_rows_sum_to_one_without_negative_logits_only():
    layer, generator = layer_of("softpick"), torch.Generator().manual_seed(2)
    q, k = (torch.rand(1, 2, 6, 8, generator=generator, dtype=torch.float64) + 0.2 for _ in range(2))
    torch.testing.assert_close(layer.maps(q, k).sum(-1), torch.ones(1, 2, 6).double(), rtol=0, atol=1e-7)
    assert not layer.maps(q, -k).any()
    mixed = torch.cat([k[:, :, :3], -k[:, :, 3:]], dim=2)
    assert (layer.maps(q, mixed).sum(-1) < 1).all()


def test_softpick_far_below_zero_has_gradients():
    layer = layer_of("softpick").float()
    q = 60 * torch.ones(1, 2, 4, 8)
    k = (-q).requires_grad_()  # logits of -10,000
    layer.maps(q, k).sum().backward()
    assert k.grad.isfinite().all()


# -- compact support ---------------------------------------------------------------------------------------------------


def threshold(z, power):
    """tau with sum [z / power - tau]_+^power = 1, by scipy."""
    u = z / power

    def excess(tau):
        return (u - tau).clamp_min(0).pow(power).sum().item() - 1

    return brentq(excess, u.max().item() - 1 - 1e-9, u.max().item(), xtol=1e-15)


@BOTH
@pytest.mark.parametrize(
    ("name", "power", "dot"),
    [("epanechnikov", 1, 0), ("biweight", 2, 0), ("triweight", 3, 0), ("sparsemax", 1, 1), ("entmax", 2, 1)],
)
def test_adaptive_bandwidths_make_rows_sum_to_one(name, power, dot, causal):
    for _, q, k, v, y in rows(layer_of(name, causal), causal):
        z = k @ q / 8**0.5 if dot else -(q - k).square().sum(-1) / (2 * 8**0.5)
        tau = threshold(z, power)
        torch.testing.assert_close(y, (z / power - tau).clamp_min(0).pow(power) @ v, rtol=0, atol=1e-9)
        if not dot:  # the kernel 1 - d^2 / h^2 of that bandwidth
            kernel = (1 - (q - k).square().sum(-1) / (-2 * 8**0.5 * power * tau)).clamp_min(0).pow(power)
            torch.testing.assert_close(y, kernel @ v / kernel.sum(), rtol=0, atol=1e-9)


@BOTH
@pytest.mark.parametrize("bandwidth", ["nearest", "fixed"])
def test_other_bandwidths(bandwidth, causal):
    layer, empty = layer_of("biweight", causal, bandwidth=bandwidth, learn_bandwidth=True), 0
    for h, q, k, v, y in rows(layer, causal, n=12):
        distance = (q - k).square().sum(-1)
        if bandwidth == "nearest":
            distance = distance - distance.min()
        kernel = (1 - distance / (2 * 2 * 8**0.5 * layer.log_scale[h].exp())).clamp_min(0).square()
        empty += not kernel.any()
        torch.testing.assert_close(y, kernel @ v / kernel.sum().clamp_min(1e-300), **EXACT)
    assert (empty > 0) == (bandwidth == "fixed")


@pytest.mark.parametrize("name", ["epanechnikov", "biweight", "triweight"])
def test_gradients_of_the_threshold(name):
    layer = layer_of(name)
    q, k = (torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    assert 0 < (layer.maps(q, k) == 0).double().mean() < 0.9
    values = torch.randn(6, 3, generator=torch.Generator().manual_seed(2)).double()
    torch.autograd.gradcheck(lambda q, k: layer.maps(q, k) @ values, (q.requires_grad_(), k.requires_grad_()))


def test_large_powers_are_gaussian_and_supports_grow():
    q, k = (torch.randn(1, 2, 40, 8, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    gaussian = layer_of("gaussian", length=40).maps(q, k)
    maps = {n: layer_of("epanechnikov", power=n).maps(q, k) for n in (1, 2, 4, 64, 512)}
    errors = [(m - gaussian).abs().max() for m in maps.values()]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.002
    supports = [(m > 0).double().mean() for m in maps.values()]
    assert supports == sorted(supports)


# -- local linear regression -------------------------------------------------------------------------------------------


def first_order_weights(layer, q, k):
    kinds = {"dot": lambda: k @ q / 8**0.5, "gaussian": lambda: -(q - k).square().sum(-1) / (2 * 8**0.5)}
    kind = layer.log_kernel.kind
    return sinc_weights(q, k, layer.log_kernel.radius) if kind == "sinc" else kinds[kind]().exp()


@BOTH
@pytest.mark.parametrize("name", ["local_linear", "local_linear_dot", "local_linear_fourier"])
def test_it_is_the_weighted_ridge_regression_at_the_query(name, causal):
    """By least squares with rows of sqrt(ridge) appended; the intercept is not penalised."""
    for _, q, k, v, y in rows(layer_of(name, causal), causal):
        layer = layer_of(name, causal)
        p = first_order_weights(layer, q, k)
        root = (p / p.sum()).sqrt()[:, None]
        design = torch.cat([torch.ones(len(k), 1).double(), k - q], dim=1)
        penalty = 0.1**0.5 * torch.eye(9).double()[1:]
        target = torch.cat([root * v, torch.zeros(8, v.shape[1]).double()])
        solution = torch.linalg.lstsq(torch.cat([root * design, penalty]), target).solution
        torch.testing.assert_close(y, solution[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "other", "knobs"),
    [
        ("local_linear", "gaussian", {}),
        ("local_linear_dot", "softmax", {}),
        ("local_linear_fourier", "fourier", {"eps": 0.0}),
    ],
)
def test_a_large_ridge_is_kernel_regression(name, other, knobs):
    layer, plain = layer_of(name, True, ridge=1e9), layer_of(other, True, **knobs)
    plain.load_state_dict(layer.state_dict(), strict=False)
    if other == "fourier":
        plain.radius.data.copy_(layer.log_kernel.radius)
    torch.testing.assert_close(layer(tokens(9)), plain(tokens(9)), rtol=0, atol=1e-6)


def test_affine_functions_of_the_keys_are_returned_exactly():
    layer = layer_of("local_linear", ridge=1e-9)
    q, k = (torch.randn(1, 2, 30, 8, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    matrix = torch.randn(8, 8, generator=torch.Generator().manual_seed(2)).double()
    torch.testing.assert_close(layer.mix(q, k, k @ matrix + 3, k), q @ matrix + 3, rtol=0, atol=1e-5)
    assert (layer.maps(q, k) < 0).any()


def test_keys_far_from_the_origin_keep_their_covariance():
    layer = layer_of("local_linear").float()
    q, k, v = (torch.randn(1, 2, 30, 8, generator=torch.Generator().manual_seed(s)) for s in (0, 1, 2))
    torch.testing.assert_close(layer.mix(q + 64, k + 64, v, v), layer.mix(q, k, v, v), rtol=0, atol=1e-3)


@BOTH
def test_parallax_is_local_linear_with_a_learned_probe(causal):
    layer = layer_of("parallax", causal)
    x = tokens(7, batch=1)
    q, k, v, mixed = projected(layer, x)
    probes = (x[0] @ layer.probe.mT).unflatten(-1, (2, 8))
    for h, i in itertools.product(range(2), range(7)):
        seen = i + 1 if causal else 7
        p = (k[0, h, :seen] @ q[0, h, i, :8] / 8**0.5).softmax(0)
        weights = p * (1 - (k[0, h, :seen] - p @ k[0, h, :seen]) @ probes[i, h])
        torch.testing.assert_close(mixed[0, h, i], weights @ v[0, h, :seen], **EXACT)


@BOTH
def test_parallax_starts_as_softmax(causal):
    geometry = Geometry(dim=16, heads=2, length=9, causal=causal)
    layer, softmax = (attention.build(name, geometry).double() for name in ("parallax", "softmax"))
    softmax.load_state_dict(layer.state_dict(), strict=False)
    torch.testing.assert_close(layer(tokens(9)), softmax(tokens(9)), **EXACT)


# -- mixtures, medians, controls ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("second", ["projection", "shift"])
@pytest.mark.parametrize("assign", ["soft", "hard"])
def test_mixtures_of_two_keys(assign, second, causal):
    layer = layer_of("mgk", causal, assign=assign, second=second)
    for h, q, k, v, y in rows(layer, causal):
        kernels = [(-a * (q - key).square().sum(-1) / (2 * 8**0.5)).exp() for a, key in ((1, k[:, :8]), (3, k[:, 8:]))]
        if assign == "hard":
            weights = torch.maximum(*kernels)
        else:
            share = layer.mixture[h].softmax(0)
            weights = share[0] * kernels[0] + share[1] * kernels[1]
        torch.testing.assert_close(y, weights @ v / weights.sum(), **EXACT)


def robust_weights(points, loss, a, iterations):
    """As the paper has it: one key after the other."""
    n = len(points)
    kernel = torch.tensor([[math.exp(-(p - o).square().sum().item() / 8**0.5) for o in points] for p in points])
    kernel, weights = kernel.double(), torch.full((n,), 1 / n, dtype=torch.float64)
    for _ in range(iterations):
        new = []
        for j in range(n):
            r = (kernel[j, j] - 2 * kernel[j] @ weights + weights @ kernel @ weights).clamp_min(1e-24).sqrt().item()
            if loss == "huber":
                new.append(min(1, a / r))
            else:
                new.append(1 if r <= a else a / r if r <= 2 * a else max(0, a * (3 * a - r) / (a * r)))
        weights = torch.tensor(new, dtype=torch.float64)
        weights = weights / weights.sum() if weights.any() else torch.full((n,), 1 / n, dtype=torch.float64)
    return weights


@BOTH
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(("loss", "a", "iterations"), [("huber", 0.2, 1), ("huber", 0.4, 3), ("hampel", 0.5, 2)])
def test_robust_weights_of_keys(loss, a, iterations, joint, causal):
    for _, q, k, v, y in rows(layer_of("rkde", causal, loss=loss, a=a, iterations=iterations, joint=joint), causal):
        k = k / k.norm(dim=1, keepdim=True)
        kernel = (-(q - k).square().sum(-1) / 8**0.5).exp()
        of_keys = robust_weights(k, loss, a, iterations)
        of_pairs = robust_weights(torch.cat([k, v], 1), loss, a, iterations) if joint else of_keys
        torch.testing.assert_close(y, (of_pairs * kernel) @ v / (of_keys @ kernel), rtol=0, atol=1e-6)


def test_no_key_is_an_outlier_beyond_the_largest_distance():
    """K = 1 at most: r <= sqrt(2)."""
    torch.testing.assert_close(
        layer_of("rkde", True, a=1.5)(tokens(9)), layer_of("kde", True)(tokens(9)), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize(("loss", "share"), [("huber", 0.8), ("hampel", 0.0)])
def test_an_outlier_among_the_keys_loses_weight(loss, share):
    layer = layer_of("rkde", loss=loss, a=0.3, iterations=3, joint=False)
    k = 0.1 * torch.randn(1, 2, 12, 8, generator=torch.Generator().manual_seed(0)).double() + torch.eye(8)[0].double()
    k[:, :, 5] = -3 * torch.eye(8)[0].double()
    weights = layer._weights(k / k.norm(dim=-1, keepdim=True), torch.ones(1, 1, 1, 12, dtype=torch.bool), -1 / 8**0.5)
    others = weights[..., [j for j in range(12) if j != 5]]
    assert (weights[..., 5:6] <= share * others).all()


def test_two_equal_keys_are_one():
    layer, plain = layer_of("mgk", second="shift", sharpness=1.0), layer_of("gaussian")
    plain.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        layer.shift.zero_()
    torch.testing.assert_close(layer(tokens(9)), plain(tokens(9)), **EXACT)


@BOTH
@pytest.mark.parametrize("name", ["mom", "mom_fourier"])
@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_the_block_of_median_density(name, blocks, causal):
    layer = layer_of(name, causal, blocks=blocks)
    for _, q, k, v, y in rows(layer, causal, n=11):
        if name == "mom":
            weights = (-(q - k / k.norm(dim=1, keepdim=True)).square().sum(-1) / 8**0.5).exp()
        else:
            weights = sinc_weights(q, k, layer.log_kernel.radius)
        members = [slice(b, None, blocks) for b in range(min(blocks, len(k)))]
        ordered = sorted(members, key=lambda block: weights[block].mean().item())
        block = ordered[(len(ordered) - 1) // 2]
        torch.testing.assert_close(y, weights[block] @ v[block] / weights[block].sum(), rtol=0, atol=1e-9)


def test_one_block_is_the_whole_estimator():
    torch.testing.assert_close(
        layer_of("mom", True, blocks=1)(tokens(9)), layer_of("kde", True)(tokens(9)), rtol=0, atol=1e-9
    )


def test_a_block_with_an_outlier_is_not_used():
    layer = layer_of("mom_fourier", blocks=3)
    q, k = (
        torch.zeros(1, 2, 1, 8).double(),
        0.1 * torch.randn(1, 2, 9, 8, generator=torch.Generator().manual_seed(0)).double(),
    )
    k[:, :, 4] = 0.0  # the only key at the query: the highest density is in block 1
    k[:, :, [1, 7]] = 0.0
    assert not layer.maps(q, k)[..., 1::3].any()


def test_kde_is_softmax_of_twice_the_products_with_unit_keys():
    for _, q, k, v, y in rows(layer_of("kde", True), True):
        torch.testing.assert_close(y, softmax_row(2 * q, k / k.norm(dim=1, keepdim=True), v), rtol=0, atol=1e-9)


@BOTH
def test_kernel_ridge_regression(causal):
    for _, q, k, v, y in rows(layer_of("kernel_ridge", causal, ridge=0.3), causal):
        kernel = (-torch.cdist(k, k).square() / (2 * 8**0.5)).exp()
        towards = (-(q - k).square().sum(-1) / (2 * 8**0.5)).exp()
        expected = towards @ torch.linalg.solve(kernel + 0.3 * torch.eye(len(k)).double(), v)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-8)


def test_limits_of_the_ridge():
    q, k, v = (torch.randn(1, 2, 12, 8, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1, 2))
    torch.testing.assert_close(layer_of("kernel_ridge", ridge=1e-3).mix(k, k, v, v), v, rtol=0.1, atol=0.1)
    kernel = (-torch.cdist(q, k).square() / (2 * 8**0.5)).exp()
    torch.testing.assert_close(1e6 * layer_of("kernel_ridge", ridge=1e6).mix(q, k, v, v), kernel @ v, rtol=0, atol=1e-4)


# -- order and differences ---------------------------------------------------------------------------------------------


def test_logits_fall_by_the_gates_between():
    layer, x = layer_of("forgetting", True), tokens(7, batch=1)
    gates = (layer.gate(x) + layer.gate_bias).sigmoid()[0]
    q, k, v, mixed = projected(layer, x)
    for h, i in itertools.product(range(2), range(7)):
        between = torch.stack([gates[j + 1 : i + 1, h].prod().log() for j in range(i + 1)])
        expected = softmax_row(q[0, h, i], k[0, h, : i + 1, :8], v[0, h, : i + 1], between)
        torch.testing.assert_close(mixed[0, h, i], expected, **EXACT)


def test_constant_gates_are_alibi_and_open_ones_softmax():
    layer = layer_of("forgetting", True)
    x = tokens(9)
    with torch.no_grad():
        layer.gate.weight.zero_()
        for name, log_gates in (
            ("alibi", -layer_of("alibi", True).slopes.double()),
            ("softmax", torch.zeros(2).double()),
        ):
            layer.gate_bias.copy_(-(torch.expm1(-log_gates).clamp_min(1e-18)).log())  # f / (1 - f) = 1 / (e^m - 1)
            other = layer_of(name, True)
            other.load_state_dict(layer.state_dict(), strict=False)
            torch.testing.assert_close(layer(x), other(x), **EXACT)


def test_shares_of_a_stick():
    layer, x = layer_of("stick_breaking", True), tokens(7, batch=1)
    q, k, v, mixed = projected(layer, x)
    maps = layer.maps(q, k)
    torch.testing.assert_close(maps.sum(-1), torch.ones(1, 2, 7).double(), **EXACT)
    for h, i in itertools.product(range(2), range(7)):
        left, expected = 1.0, 0.0
        for j in reversed(range(i)):
            share = (q[0, h, i] @ k[0, h, j] / 8**0.5).sigmoid()
            expected = expected + left * share * v[0, h, j]
            left = left * (1 - share)
        torch.testing.assert_close(mixed[0, h, i], expected + left * v[0, h, i], **EXACT)


@pytest.mark.parametrize("norm", ["backward", "ortho"])
def test_fnet_is_a_sum_of_cosines_and_sines(norm):
    layer, x = layer_of("fnet", norm=norm), tokens(7)

    def tables(n):
        angles = 2 * math.pi / n * torch.outer(torch.arange(n), torch.arange(n)).double()
        return angles.cos(), angles.sin()

    (cos_n, sin_n), (cos_c, sin_c) = tables(7), tables(16)
    expected = cos_n @ x @ cos_c - sin_n @ x @ sin_c
    torch.testing.assert_close(layer(x), expected / (math.sqrt(7 * 16) if norm == "ortho" else 1), **EXACT)
    assert not list(layer.parameters())


@BOTH
def test_the_difference_of_two_maps(causal):
    layer = layer_of("differential", causal)
    a1, b1, a2, b2 = layer.vectors
    share = (a1 @ b1).exp() - (a2 @ b2).exp() + 0.2
    for _, q, k, v, y in rows(layer, causal):
        difference = softmax_row(q[:4], k[:, :4], v) - share * softmax_row(q[4:], k[:, 4:], v)
        expected = 0.8 * layer.scale * difference / (difference.square().mean() + 1e-5).sqrt()
        torch.testing.assert_close(y, expected, **EXACT)


@pytest.mark.parametrize("name", ["differential", "fourier_disc"])
def test_an_odd_number_of_coordinates_has_no_pairs(name):
    with pytest.raises(SetupError, match="3 coordinates per head is an odd number"):
        attention.build(name, Geometry(dim=6, heads=2, length=5, causal=True))


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("fourier_sink", {"eps": 0.0}, "attention.eps=0.0: must be more than 0"),
        ("fourier_sink", {"power": 3}, "attention.power must be an even integer"),
        ("relu_attention", {"power": 0}, "attention.power must be a whole number from 1"),
        ("epanechnikov", {"power": 0}, "attention.power must be a whole number from 1"),
        ("local_linear", {"ridge": 0.0}, "attention.ridge=0.0: must be more than 0"),
        ("mgk", {"sharpness": -1.0}, "attention.sharpness=-1.0: must be more than 0"),
        ("fourier_disc", {"eps": -1.0}, "attention.eps=-1.0: must be at least 0"),
        ("kernel_ridge", {"ridge": 0.0}, "attention.ridge=0.0: must be at least 0.001"),
        ("rkde", {"iterations": 0}, "attention.iterations must be a whole number from 1"),
        ("mom", {"blocks": 0}, "attention.blocks must be a whole number from 1"),
    ],
)
def test_values_that_make_no_sense_are_refused(name, knobs, message):
    with pytest.raises(SetupError, match=message):
        layer_of(name, **knobs)
