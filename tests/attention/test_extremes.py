"""Inputs and parameters of any size, and models in half precision: outputs stay finite and mean something."""

import copy
import warnings

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines.features import elu_features
from fourierformer.attention.engines.floor import ADVICE
from fourierformer.attention.mechanisms.polynomial import shorten

CHOICES = [(n, c) for c in (True, False) for n in attention.available(causal=c)]
LARGE = [("taylor", {"order": 6}), ("taylor", {"order": 8}), ("expdef", {"order": 8}), ("fourier_linear", {"order": 8})]


def built(name, causal=True, **knobs):
    torch.manual_seed(0)
    grid = (4, 8) if attention.mechanism(name).needs_grid else None
    return attention.build(name, Geometry(dim=32, heads=2, length=32, causal=causal, grid=grid), **knobs)


def tokens(size=1.0, count=32):
    return size * torch.randn(2, count, 32, generator=torch.Generator().manual_seed(1))


def assert_finite(layer, x):
    x = x.clone().requires_grad_()
    y = layer(x)
    y.float().sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
    return y


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_a_model_in_half_precision_computes_nearly_the_same(name, causal):
    for dtype in (torch.bfloat16, torch.float16):
        layer, x = built(name, causal), tokens()
        exact = layer(x)
        half = assert_finite(layer.to(dtype), x.to(dtype))
        assert half.dtype == dtype
        choice = 2 if name.startswith("mom") else 1  # where the densities of two blocks nearly tie, rounding chooses
        assert (half - exact).norm() <= choice * 0.2 * exact.norm()


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_between_rounded_arguments_and_a_rounded_output_half_precision_costs_nothing(name, causal):
    """Of arguments that bfloat16 holds exactly, against float64, under autocast and in a whole model. Its numbers are
    rounded by at most 2^-9, here three times: the output, an output gate, and their product."""
    for whole in (False,) if name == "sac" else (False, True):  # whose predictor's keys hang on single roundings
        layer, x = built(name, causal).eval(), tokens().bfloat16()
        layer, x = (layer.bfloat16(), x) if whole else (layer, x.float())
        with torch.no_grad():
            with torch.autocast("cpu", torch.bfloat16, enabled=not whole):
                arguments = *layer.project(3 * x), x
                mixed = layer.mix(*arguments)
            exact = copy.deepcopy(layer).double().mix(*(t.double() for t in arguments))
            assert (mixed - exact).norm() <= 3 * 2**-9 * exact.norm()


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_inputs_of_any_size_stay_finite(name, causal):
    """Also of tokens in groups of nearly equal ones, and where the last block or window is not full."""
    groups = tokens(1.0, 4).repeat_interleave(8, dim=1) + tokens(1e-3)
    for x in (tokens(1e4), 1e4 * groups, 10 * groups[:, :20]):
        if attention.mechanism(name).needs_grid and x.shape[1] < 32:
            continue
        assert_finite(built(name, causal), x)


@pytest.mark.parametrize("form", ["parallel", "chunk"])
@pytest.mark.parametrize("size", [1e3, 1e4])
@pytest.mark.parametrize(("name", "knobs"), LARGE)
def test_polynomials_of_high_order_stay_finite(name, knobs, size, form):
    torch.manual_seed(0)
    layer = attention.build(name, Geometry(dim=8, heads=2, length=32, causal=True), **knobs, form=form)
    y = assert_finite(layer, tokens(size)[..., :8])
    assert (y.abs().amax(-1) > 0).all()


def test_shortened_vectors_keep_their_direction_and_others_their_value():
    short, long = tokens(), tokens(1e6)
    assert torch.equal(shorten(short, 8), short)
    lengths = shorten(long, 8).norm(dim=-1)
    # |x|^(2 n) / n! = 1e25, so (1e25 * 40320)^(1/16) = 70.8
    torch.testing.assert_close(lengths, torch.full_like(lengths, 70.8), rtol=1e-3, atol=0)
    torch.testing.assert_close(torch.nn.functional.cosine_similarity(shorten(long, 8), long, dim=-1), torch.ones(2, 32))


def test_long_keys_are_still_averaged_by_linear_fourier_attention():
    layer = built("fourier_linear")
    q, k, _ = layer.project(tokens(1e4))
    rows = layer.maps(q, k).sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


def test_elu_features_have_their_gradient_at_zero_too():
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    elu_features(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([-1.0, 0.0, 0.0], dtype=torch.float64).exp())


@pytest.mark.parametrize("bias", [70.0, 110.0, 1e4])
def test_a_gate_that_never_fades_is_no_gate(bias):
    gated, plain = built("rfa"), built("rfa", gate=False)
    plain.load_state_dict(gated.state_dict(), strict=False)
    with torch.no_grad():
        gated.gate_bias.fill_(bias)
        gated.gate.weight.zero_()
    torch.testing.assert_close(assert_finite(gated, tokens()), plain(tokens()), rtol=1e-4, atol=1e-5)


def floor_share(layer, q, k, v):
    layer.eval()
    layer.mix(q, k, v, torch.empty(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return layer.diagnostics(), [str(w.message) for w in caught]


@pytest.mark.parametrize("form", ["parallel", "chunk"])
@pytest.mark.parametrize(("size", "often"), [(0.3, False), (1.0, True)])
def test_the_share_of_queries_whose_sum_the_floor_raised(size, often, form):
    """Rows of maps add up to 1 but where the floor is divided by instead."""
    layer = attention.build("performer_trig", Geometry(dim=64, heads=2, length=40, causal=True), form=form)
    q, k, v = (size * torch.randn(2, 2, 40, 32, generator=torch.Generator().manual_seed(i)) for i in range(3))
    numbers, advice = floor_share(layer, q, k, v)
    sums = layer.maps(q, k).sum(-1)
    assert numbers == {"floor_share": pytest.approx((sums < 1 - 1e-4).float().mean().item(), abs=0.02)}
    assert advice == ([ADVICE] if often else [])
    assert (numbers["floor_share"] > 0.5) == often


def test_nothing_is_said_of_a_floor_before_an_evaluation_or_without_one_or_of_padding():
    for layer in (built("rfa"), built("performer_trig")):
        x = tokens()
        layer.train()
        layer(x)
        assert "floor_share" not in layer.diagnostics()
        layer.eval()
        layer(x, keep=torch.ones(x.shape[:2], dtype=torch.bool))
        assert "floor_share" not in layer.diagnostics()


@pytest.mark.parametrize(("name", "knobs"), [("lsh", {}), ("gaussian", {"normalize_keys": True}), ("rfa", {})])
@pytest.mark.parametrize("whole", [False, True])
def test_vectors_of_zeros_in_half_precision_have_finite_directions(name, knobs, whole):
    """Padding becomes zeros, and in float16 the usual 1e-12 beside their norm is 0 too."""
    torch.manual_seed(0)
    layer = attention.build(name, Geometry(dim=32, heads=4, length=20, causal=True), **knobs)
    layer, x = (layer.half(), torch.randn(2, 20, 32).half()) if whole else (layer, torch.randn(2, 20, 32))
    x[0, 3] = 0
    keep = torch.arange(20).expand(2, -1) < 15
    with torch.autocast("cpu", torch.float16, enabled=not whole):
        y = layer(x.requires_grad_(), keep=keep)
    assert y.isfinite().all()
    y[:, :15].float().square().mean().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["gaussian", "gaussian_full", "fourier"])
@pytest.mark.parametrize("causal", [True, False])
def test_only_differences_of_queries_and_keys_matter(name, causal):
    layer = attention.build(name, Geometry(dim=32, heads=4, length=20, causal=causal))
    q, k, v = torch.randn(3, 2, 4, 20, 8)
    offset = 256 * torch.randn(4, 1, 8).sign()  # a power of two: q + offset is exact to 2^-15
    q, k = ((t + offset) - offset for t in (q, k))
    x = torch.empty(2, 20, 32)
    torch.testing.assert_close(layer.mix(q + offset, k + offset, v, x), layer.mix(q, k, v, x), rtol=0, atol=1e-4)
