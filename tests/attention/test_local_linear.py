"""Local linear regression and Parallax, against least squares and against their limits."""

import itertools
import math

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines import full_product
from tests.helpers.tf32 import Tf32
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, projected, rows, sinc_weights, tokens


def first_order_weights(layer, q, k):
    kinds = {"dot": lambda: k @ q / 8**0.5, "gaussian": lambda: -(q - k).square().sum(-1) / (2 * 8**0.5)}
    kind = layer.log_kernel.kind
    return sinc_weights(q, k, layer.log_kernel.radius) if kind == "sinc" else kinds[kind]().exp()


def ridge_regression(p, q, k, v, ridge: float):
    """At q, by least squares with rows of sqrt(ridge) appended; the intercept is not penalised."""
    root = (p / p.sum()).sqrt()[:, None]
    design = torch.cat([torch.ones(len(k), 1).double(), k - q], dim=1)
    penalty = ridge**0.5 * torch.eye(9).double()[1:]
    target = torch.cat([root * v, torch.zeros(8, v.shape[1]).double()])
    return torch.linalg.lstsq(torch.cat([root * design, penalty]), target).solution[0]


@BOTH
@pytest.mark.parametrize("name", ["local_linear", "local_linear_dot", "local_linear_fourier"])
def test_it_is_the_weighted_ridge_regression_at_the_query(name, causal):
    layer = layer_of(name, causal)
    for _, q, k, v, y in rows(layer, causal):
        expected = ridge_regression(first_order_weights(layer, q, k), q, k, v, 0.1)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-8)


@BOTH
def test_a_learned_ridge_belongs_to_a_head_and_begins_at_the_knob(causal):
    begun = attention.build("local_linear", Geometry(16, 2, 9, causal), ridge=0.3, learn_ridge=True)
    assert begun.log_ridge.exp().tolist() == pytest.approx([0.3, 0.3])
    layer, ridges = layer_of("local_linear", causal, learn_ridge=True), (0.05, 2.0)
    with torch.no_grad():
        layer.log_ridge.copy_(torch.tensor(ridges).log())
    for h, q, k, v, y in rows(layer, causal):
        expected = ridge_regression(first_order_weights(layer, q, k), q, k, v, ridges[h])
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)


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


@pytest.mark.parametrize("name", ["local_linear", "local_linear_dot", "parallax"])
@pytest.mark.parametrize("size", [1.0, 300.0, 1e4])
def test_rows_sum_to_one_for_keys_of_any_length(name, size):
    layer = layer_of(name, True).float()
    q, k, probe = (size * torch.randn(2, 2, 32, 8, generator=torch.Generator().manual_seed(s)) for s in (0, 1, 2))
    weights = layer.maps(torch.cat([q, probe], dim=-1) if name == "parallax" else q, k)
    assert ((weights.sum(-1) - 1).abs() <= 1e-4 * weights.abs().sum(-1)).all()


def test_a_small_ridge_is_the_one_asked_for():
    """In float32, too: nothing is added to it but where rounding errors of the moments are larger."""
    layer = attention.build("local_linear", Geometry(32, 2, 32, True), ridge=0.01)
    q, k, v = (torch.randn(2, 2, 32, 16, generator=torch.Generator().manual_seed(s)) for s in range(3))
    exact = layer.mix(*(x.double() for x in (q, k, v, v)))
    assert (layer.mix(q, k, v, v) - exact).norm() < 1e-4 * exact.norm()


@BOTH
def test_parallax_starts_as_softmax(causal):
    geometry = Geometry(dim=16, heads=2, length=9, causal=causal)
    layer, softmax = (attention.build(name, geometry).double() for name in ("parallax", "softmax"))
    softmax.load_state_dict(layer.state_dict(), strict=False)
    torch.testing.assert_close(layer(tokens(9)), softmax(tokens(9)), **EXACT)


@pytest.mark.parametrize("split", [True, False])
def test_slopes_survive_tensor_cores(split, monkeypatch):
    """Keys of size 4 in 64 coordinates: TF32's moments are no covariance, which the parts of the product prevent."""
    layer = attention.build("local_linear", Geometry(dim=128, heads=2, length=128, causal=True))
    q, k = (4 * torch.randn(1, 2, 128, 64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    p = (q @ k.mT / 64).masked_fill(torch.ones(128, 128).triu(1).bool(), -math.inf).softmax(-1)
    exact = layer._slopes(*(x.double() for x in (p, q, k)))
    monkeypatch.setattr(full_product, "is_reduced", lambda x: split)
    with Tf32():
        found = layer._slopes(p, q, k)
    error = ((found - exact).norm() / exact.norm()).item()
    assert (error < 0.05) == split, error
