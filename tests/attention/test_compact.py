"""Weights of single keys and kernels of compact support, each against its formula in a plain loop."""

import pytest
import torch
from scipy.optimize import brentq

from fourierformer import attention
from fourierformer.attention import Geometry
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, rows, tokens


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


def test_a_bias_of_the_sigmoid_that_is_a_number():
    for _, q, k, v, y in rows(layer_of("sigmoid", True, bias=0.7), True):
        torch.testing.assert_close(y, 1 / (1 + (-(k @ q / 8**0.5) - 0.7).exp()) @ v, **EXACT)


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


# -- compact support --------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["epanechnikov", "biweight", "triweight", "sparsemax", "entmax"])
def test_the_threshold_in_float32_is_that_of_float64(name):
    """What trains: halvings of its own number."""
    layer = layer_of(name, length=200)
    q, k = (2 * torch.randn(1, 2, 200, 8, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    torch.testing.assert_close(layer.maps(q.float(), k.float()).double(), layer.maps(q, k), rtol=0, atol=2e-5)


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


def test_the_support_is_the_number_of_keys_with_weight_of_the_last_query():
    layer, x = layer_of("entmax", True), tokens(20)
    layer(x)
    kept = (layer.maps(*layer.project(x)[:2])[:, :, -1] > 0).sum(-1).double().mean().item()
    assert 1 < kept < 20
    assert layer.diagnostics() == {"support": pytest.approx(kept)}


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
