"""Taylor polynomials and (1 + s/n)^n instead of softmax: exact features, forms that agree, distance from softmax."""

import math
from itertools import pairwise

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines.recurrence import PARALLEL_UP_TO
from fourierformer.attention.mechanisms.polynomial import (
    Monomials,
    PolynomialAttention,
    expdef_coefficients,
    expdef_kernel,
    taylor_coefficients,
    taylor_kernel,
)
from fourierformer.errors import SetupError
from tests.helpers.one_by_one import one_by_one

KERNELS = {"taylor": (taylor_kernel, taylor_coefficients), "expdef": (expdef_kernel, expdef_coefficients)}


def geometry(causal: bool = True, width: int = 8, length: int = 256) -> Geometry:
    return Geometry(dim=2 * width, heads=2, length=length, causal=causal)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(name: str, causal: bool = True, width: int = 8, **knobs) -> PolynomialAttention:
    torch.manual_seed(0)
    return attention.build(name, geometry(causal, width), **knobs).double()


def error_against_softmax(weights: torch.Tensor, logits: torch.Tensor, v: torch.Tensor) -> float:
    expected = logits.softmax(-1) @ v
    return ((weights / weights.sum(-1, keepdim=True) @ v - expected).norm() / expected.norm()).item()


def quarter_logits() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits q.k / sqrt(16) of standard deviation 1/4, and values."""
    q, k, v = normal(3, 8, 256, 16)
    return 0.25 * q @ k.mT / 4, v


# -- the kernels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3, 6])
def test_the_kernels_are_their_coefficients(order):
    s = normal(100)
    by_powers = [sum(c * s**m for m, c in enumerate(co(order))) for _, co in KERNELS.values()]
    torch.testing.assert_close(taylor_kernel(s, order), by_powers[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(expdef_kernel(s, order), by_powers[1], rtol=1e-12, atol=1e-12)
    assert taylor_coefficients(3) == [1, 1, 1 / 2, 1 / 6]
    assert expdef_coefficients(2) == [1, 1, 1 / 4]


def test_even_orders_are_not_negative_and_odd_ones_are():
    """Of standard normal logits, 15.9 % weigh less than 0 at order 1 (s < -1), and 5.5 % in the cubic (s < -1.596)."""
    s = torch.linspace(-100, 100, 20001, dtype=torch.float64)
    for order in (2, 4, 6, 8):
        assert (taylor_kernel(s, order) > 0).all()
        assert (expdef_kernel(s, order) >= 0).all()
        assert expdef_kernel(torch.tensor(-float(order)), order) == 0
    logits = normal(1_000_000)
    for order, negative in ((1, 0.1587), (3, 0.0552)):
        assert (taylor_kernel(logits, order) < 0).double().mean().item() == pytest.approx(negative, abs=1e-3)


@pytest.mark.parametrize(("order", "error"), [(1, 0.0526), (2, 0.0136), (3, 0.0024), (4, 0.0005)])
def test_taylor_approaches_softmax_faster_than_any_power(order, error):
    logits, v = quarter_logits()
    assert error_against_softmax(taylor_kernel(logits, order), logits, v) == pytest.approx(error, rel=0.12)


def test_expdef_error_halves_when_the_order_doubles():
    logits, v = quarter_logits()
    errors = [error_against_softmax(expdef_kernel(logits, 2**i), logits, v) for i in range(7)]
    assert errors == pytest.approx([0.0526, 0.0283, 0.0155, 0.0082, 0.0042, 0.0021, 0.0011], rel=0.12)
    ratios = [a / b for a, b in pairwise(errors)]
    assert ratios[2:] == pytest.approx([2] * 4, rel=0.06)
    expected = math.sqrt(2) * 0.25**2 / 2 / 64  # log of the weights is off by s^2 / 2n: its spread for normal s
    s = 0.25 * normal(8, 256, 256)
    relative = (expdef_kernel(s, 64) / expdef_kernel(s, 64).sum(-1, keepdim=True) / s.softmax(-1) - 1).square().mean()
    assert relative.sqrt().item() == pytest.approx(expected, rel=0.03)


# -- the features ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("width", [1, 2, 16])
def test_products_of_features_are_the_kernel(name, order, width):
    kernel, coefficients = KERNELS[name]
    phi = Monomials(width, coefficients(order))
    x, y = normal(2, 20, width)
    assert phi(x).shape == (20, math.comb(width + order, order))
    expected = kernel(x @ y.T, order)
    torch.testing.assert_close(phi(x) @ phi(y).T, expected, rtol=0, atol=1e-12 * kernel((x @ y.T).abs(), order).max())


def test_features_in_full_and_their_sizes():
    x = torch.tensor([3.0, 5.0], dtype=torch.float64)
    root = math.sqrt(2)
    expected = torch.tensor([1, 3, 5, 9 / root, 15, 25 / root], dtype=torch.float64)
    torch.testing.assert_close(Monomials(2, taylor_coefficients(2))(x[None])[0], expected)
    sizes = {(16, 2): 153, (16, 3): 969, (16, 4): 4845, (32, 2): 561, (48, 2): 1225, (64, 2): 2145}
    for (width, order), features in sizes.items():
        assert Monomials(width, taylor_coefficients(order))(torch.ones(1, width)).shape == (1, features)
    assert layer("taylor", width=16).features == 153


@pytest.mark.parametrize("name", KERNELS)
def test_features_are_the_tensor_power_without_its_repetitions(name):
    """expdef: (x) of n copies of [1, x / sqrt(n)]; taylor: the powers of x over sqrt(m!), one after the other."""
    order, (x, y) = 3, normal(2, 4)
    if name == "expdef":
        one = torch.ones(1, dtype=torch.float64)
        a, b = (torch.cat([one, t / math.sqrt(order)]) for t in (x, y))
        expected = torch.einsum("i,j,k,i,j,k->", a, a, a, b, b, b)
    else:
        two, three = torch.einsum("i,j,i,j->", x, x, y, y), torch.einsum("i,j,k,i,j,k->", x, x, x, y, y, y)
        expected = 1 + x @ y + two / 2 + three / 6
    phi = Monomials(4, KERNELS[name][1](order))
    torch.testing.assert_close(phi(x[None])[0] @ phi(y[None])[0], expected, rtol=1e-12, atol=1e-12)


# -- the layers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_the_layer_is_the_plain_formula(name, causal, form):
    q, k, v = normal(3, 2, 2, 70, 8, seed=1)
    expected = torch.zeros_like(v)
    for i in range(70):
        keys = i + 1 if causal else 70
        w = KERNELS[name][0]((q[:, :, i : i + 1] @ k[:, :, :keys].mT) / math.sqrt(8), 4)
        expected[:, :, i : i + 1] = w @ v[:, :, :keys] / w.sum(-1, keepdim=True)
    mixed = layer(name, causal, order=4, form=form).mix(q, k, v, torch.empty(0))
    torch.testing.assert_close(mixed, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tokens", [1, 64, 130])
def test_forms_agree_for_all_queries_and_for_the_last(name, causal, tokens):
    x = normal(2, tokens, 16, seed=2)
    parallel, chunk = (layer(name, causal, form=form) for form in ("parallel", "chunk"))
    torch.testing.assert_close(parallel(x), chunk(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(chunk(x, last=1), parallel(x)[:, -1:], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(parallel(x, last=1), parallel(x)[:, -1:], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("order", [2, 4])
def test_token_by_token_is_the_same(name, order):
    mechanism, x = layer(name, order=order), normal(2, 20, 16, seed=3)
    torch.testing.assert_close(one_by_one(mechanism, x), mechanism(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_a_token_that_only_sees_a_weight_of_zero_gets_zero(form):
    """(1 + s/2)^2 is 0 at s = -2: q.k / sqrt(16) with 4 and -2 in one coordinate, exact in binary."""
    q, k, v = torch.zeros(3, 1, 2, 1, 16)
    q[..., 0], k[..., 0] = 4, -2
    q.requires_grad_()
    mixed = attention.build("expdef", geometry(width=16), form=form).mix(q, k, v + 1, torch.empty(0))
    assert (mixed == 0).all()
    mixed.sum().backward()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("form", ["parallel", "chunk"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_large_and_zero_logits_stay_finite(name, form, scale):
    torch.manual_seed(0)
    mechanism = attention.build(name, geometry(), form=form)
    q, k, v = (t.float().requires_grad_() for t in normal(3, 2, 2, 100, 8, seed=4))
    mixed = mechanism.mix(scale * q, scale * k, v, torch.empty(0))
    mixed.square().sum().backward()
    assert mixed.isfinite().all()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize(
    ("width", "keys", "features"),
    [(8, PARALLEL_UP_TO, False), (8, PARALLEL_UP_TO + 1, True), (32, 561, False), (32, 562, True)],
)
def test_auto_takes_features_beyond_short_sequences_and_beyond_their_own_number(width, keys, features):
    """45 features for 8 coordinates, 561 for 32."""
    mechanism, calls = layer("taylor", width=width), []
    mechanism.monomials.register_forward_hook(lambda *_: calls.append(1))
    mechanism(normal(1, keys, 2 * width))
    assert bool(calls) is features


def test_features_add_nothing_to_a_checkpoint():
    assert set(layer("taylor").state_dict()) == {"qkv.weight", "proj.weight"}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("order", [-2, 0, 1, 3])
def test_odd_orders_are_refused(name, order):
    with pytest.raises(SetupError, match=rf"attention\.order must be an even integer >= 2, got {order}: .* negative"):
        layer(name, order=order)


def test_too_many_features_are_refused_with_the_way_out_and_auto_does_without():
    """C(36, 4) = 58905 features."""
    with pytest.raises(SetupError, match=r"58905 features.*attention\.form=parallel"):
        layer("taylor", width=32, order=4, form="chunk")
    with pytest.raises(SetupError, match="order 20"):  # few features, but coefficients beyond 64 bits
        layer("taylor", width=2, order=22, form="chunk")
    mechanism = layer("taylor", width=32, order=4)
    assert mechanism.start(2) is None
    assert mechanism(normal(1, 600, 64)).isfinite().all()
