"""The portable backend against the reference, plus what only a blocked backend can get wrong."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sinc_cases import NAMES, assert_float32_class, error, inputs, run
from torch.utils._python_dispatch import TorchDispatchMode

from fourierformer.kernels.sinc import scorers
from fourierformer.kernels.sinc.portable import sinc_attention_portable, weights_of
from fourierformer.kernels.sinc.reference import log_sinc_slope, log_sinc_value, sinc_attention_reference


def check_against_reference(tensors, doutput, power=4, eps=0.0, causal=False):
    """Float64 parity to rounding, and the accuracy rule in float32."""
    options = {"power": power, "eps": eps, "causal": causal}
    truth = run(sinc_attention_reference, tensors, doutput, **options)
    for name, ours, exact in zip(NAMES, run(sinc_attention_portable, tensors, doutput, **options), truth, strict=True):
        assert error(ours, exact) < 1e-10, name
    # One radius per coordinate: the gradient of a single one may cancel to almost nothing, which has no relative error.
    q, k, v, radius = tensors
    tensors = [q, k, v, radius.expand(q.shape[1], q.shape[3]).contiguous()]
    truth = run(sinc_attention_reference, tensors, doutput, **options)
    direct = run(sinc_attention_reference, tensors, doutput, torch.float32, **options)
    assert_float32_class(run(sinc_attention_portable, tensors, doutput, torch.float32, **options), direct, truth)


def harmonics(tensors):
    q, k, _, radius = (t.float() for t in tensors)
    flat = radius.expand(q.shape[1], q.shape[3]).repeat(q.shape[0], 1)
    return scorers.choose_harmonics(q.flatten(0, 1), k.flatten(0, 1), flat)


@pytest.mark.parametrize("shape", [(), (2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("eps", [0.0, 1e-2])
@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck(shape, eps, causal):
    radius = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)[: torch.Size(shape).numel()].reshape(shape)
    tensors, _ = inputs(queries=4, keys=5, width=3, value_width=2, radius=radius)
    leaves = [t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(
        lambda *a: sinc_attention_portable(*a, power=4, eps=eps, causal=causal), leaves, fast_mode=True
    )


# (radius, scale of q and k, width, harmonics that these numbers need; None: the printed formula)
RANGES = [
    (1e-6, 1.0, 16, 1),
    (0.43, 0.23, 16, 1),
    (2.0, 0.23, 16, 4),
    (2.0, 0.23, 10, 4),  # a width that needs padding, in pairs
    (1.0, 0.4, 64, 4),
    (2.0, 1.0, 16, 16),
    (2.0, 1.0, 32, 16),
    (2.0, 1.0, 64, 16),
    (4.0, 1.0, 64, None),
    (10.0, 1.0, 16, None),
    (10.0, 1.0, 64, None),
    (100.0, 1.0, 16, None),
]


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_formulas_without_branches_are_the_printed_ones(dtype, digits):
    sizes = torch.cat((torch.tensor([0.0, 1e-300, 0.5]), torch.logspace(-20, 3, 20_001)))
    z = torch.cat((sizes, -sizes)).to(dtype)
    exact = log_sinc_slope(z.double())
    # The logarithm also where a factor is nearly 0, so relative to 1; the slope to itself, near its zeros to 0.1.
    torch.testing.assert_close(scorers.log_sinc(z).double(), log_sinc_value(z.double()), rtol=digits, atol=digits)
    assert ((scorers.log_sinc_slope(z).double() - exact).abs() <= digits * exact.abs().clamp_min(0.1)).all()
    small = z.abs() < 0.4  # where the closed form would have lost every digit
    torch.testing.assert_close(scorers.log_sinc_slope(z)[small].double(), exact[small], rtol=digits, atol=1e-300)
    assert scorers.log_sinc_slope(z[:1]).item() == 0
    unknown = torch.tensor([math.nan], dtype=dtype)
    assert scorers.log_sinc(unknown).isnan().all()
    assert scorers.log_sinc_slope(unknown).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_weight_is_too_small_to_be_a_normal_number(dtype):
    scores = torch.linspace(-800, 0, 4001, dtype=dtype)
    weights = weights_of(scores.clone())
    assert weights[[0, -1]].tolist() == [0, 1]
    assert weights[weights > 0].min() > 1e6 * torch.finfo(dtype).tiny  # room for gradients that are smaller still
    kept = weights > 0
    torch.testing.assert_close(weights[kept], scores[kept].exp())
    assert weights_of(torch.tensor([math.nan, -math.inf], dtype=dtype)).tolist() == pytest.approx(
        [math.nan, 0.0], nan_ok=True
    )


def always_products(monkeypatch):
    """... even for so few pairs that they do not pay."""
    monkeypatch.setattr(scorers, "PAIRS_PER_TOKEN", dict.fromkeys(scorers.HARMONICS, 0))


def never_products(monkeypatch):
    monkeypatch.setattr(scorers, "PAIRS_PER_TOKEN", dict.fromkeys(scorers.HARMONICS, math.inf))


@pytest.mark.parametrize(("radius", "scale", "width", "expected"), RANGES)
@pytest.mark.parametrize("power", [2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_accuracy_over_the_range_of_arguments(radius, scale, width, expected, power, causal, monkeypatch):
    always_products(monkeypatch)
    tensors, doutput = inputs(batch=2, queries=65, width=width, radius=radius, scale=scale)
    assert harmonics(tensors) == expected
    check_against_reference(tensors, doutput, power=power, causal=causal)


@pytest.mark.parametrize("queries", [1, 7, 33, 197])
@pytest.mark.parametrize("width", [1, 8, 24, 30, 48])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("choose", [always_products, never_products])
def test_odd_sizes(queries, width, eps, choose, monkeypatch):
    choose(monkeypatch)
    tensors, doutput = inputs(heads=1, queries=queries, width=width, radius=1.0)
    check_against_reference(tensors, doutput, eps=eps, causal=True)


@pytest.mark.parametrize(("queries", "keys"), [(1, 256), (256, 2), (40, 100), (100, 40)])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_and_keys_differ_in_number(queries, keys, causal):
    tensors, doutput = inputs(queries=queries, keys=keys, value_width=5)
    check_against_reference(tensors, doutput, causal=causal)


def test_the_last_query_alone_equals_the_last_row():
    (q, k, v, radius), _ = inputs(queries=64)
    options = {"power": 4, "eps": 1e-6, "causal": True}
    whole = sinc_attention_portable(q, k, v, radius, **options)
    assert error(sinc_attention_portable(q[:, :, -1:], k, v, radius, **options), whole[:, :, -1:]) < 1e-12


def test_future_keys_change_nothing():
    (q, k, v, radius), _ = inputs(queries=70)
    q, k, v, radius = (t.float() for t in (q, k, v, radius))
    before = sinc_attention_portable(q, k, v, radius, power=4, eps=0.0, causal=True)[:, :, :50]
    k, v = k.clone(), v.clone()
    k[:, :, 50:] *= 0.5  # stays inside the range covered before: the same number of harmonics
    v[:, :, 50:] = 7.0
    after = sinc_attention_portable(q, k, v, radius, power=4, eps=0.0, causal=True)[:, :, :50]
    assert error(after, before.double()) < 1e-5


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    heads=st.integers(1, 3),
    queries=st.integers(1, 70),
    keys=st.integers(1, 70),
    width=st.integers(1, 20),
    value_width=st.integers(1, 20),
    power=st.sampled_from([2, 4, 6, 10]),
    eps=st.sampled_from([0.0, 1e-6, 1.0]),
    causal=st.booleans(),
    radius=st.floats(-4, 4),
    seed=st.integers(0, 1000),
)
def test_any_shape(heads, queries, keys, width, value_width, power, eps, causal, radius, seed):
    tensors, doutput = inputs(2, heads, queries, keys, width, value_width, radius, seed=seed)
    check_against_reference(tensors, doutput, power=power, eps=eps, causal=causal)


@pytest.mark.parametrize("shape", [(), (3, 1), (1, 16), (3, 16)])
def test_every_radius_shape_in_float32(shape):
    radius = 0.5 + torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tensors, doutput = inputs(batch=2, heads=3, queries=65, radius=radius)
    check_against_reference(tensors, doutput, eps=1e-6, causal=True)


def test_small_tiles_give_the_same(monkeypatch):
    tensors, doutput = inputs(batch=2, heads=3, queries=70, keys=90)
    monkeypatch.setattr(scorers, "TILE", 4096)
    always_products(monkeypatch)
    check_against_reference(tensors, doutput, causal=True)
    never_products(monkeypatch)
    check_against_reference(tensors, doutput, causal=True)


def test_same_numbers_twice():
    tensors, doutput = inputs(batch=2, queries=197)
    options = {"power": 4, "eps": 0.0, "causal": True}
    first = run(sinc_attention_portable, tensors, doutput, torch.float32, **options)
    second = run(sinc_attention_portable, tensors, doutput, torch.float32, **options)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_strided_inputs():
    tensors, doutput = inputs(batch=2, queries=65)
    options = {"power": 4, "eps": 0.0, "causal": True}
    truth = run(sinc_attention_portable, tensors, doutput, torch.float32, **options)
    strided = [t.float().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in tensors[:3]]
    radius = tensors[3].float().requires_grad_()
    output = sinc_attention_portable(*strided, radius, **options)
    output.backward(doutput.float().mT.contiguous().mT)
    for ours, exact in zip([output, *(t.grad for t in (*strided, radius))], truth, strict=True):
        assert error(ours, exact.double()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_and_cast_back(dtype):
    tensors, doutput = inputs(queries=65)
    rounded, doutput = [t.to(dtype) for t in tensors], doutput.to(dtype)
    options = {"power": 4, "eps": 1e-6, "causal": True}
    half = run(sinc_attention_portable, rounded, doutput, **options)
    single = run(sinc_attention_portable, rounded, doutput, torch.float32, **options)
    assert all(torch.equal(a, b.to(dtype)) for a, b in zip(half, single, strict=True))


def test_autocast_and_reduced_matmul_precision_change_nothing():
    tensors, doutput = inputs(queries=65)
    options = {"power": 4, "eps": 1e-6, "causal": True}
    plain = run(sinc_attention_portable, tensors, doutput, torch.float32, **options)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", torch.bfloat16):
            inside = run(sinc_attention_portable, tensors, doutput, torch.float32, **options)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert all(torch.equal(a, b) for a, b in zip(plain, inside, strict=True))


class Largest(TorchDispatchMode):
    """Size in numbers of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for item in result if isinstance(result, list | tuple) else [result]:
            if isinstance(item, torch.Tensor):
                self.numel = max(self.numel, item.untyped_storage().nbytes() // item.element_size())
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_tensor_is_larger_than_a_tile_or_linear_in_the_tokens(dtype, monkeypatch):
    monkeypatch.setattr(scorers, "TILE", 2**16)
    tensors, doutput = inputs(batch=2, heads=4, queries=300, width=16)
    with Largest() as largest:
        run(sinc_attention_portable, tensors, doutput, dtype, power=4, eps=0.0, causal=False)
    # README.md: one and a half tiles of max(TILE, 16 rows x M x D) numbers; the features of one chunk of heads (here
    # one) max(N, M) x D x max(harmonics, 11). Far from one number per pair (720,000), let alone pair and coordinate.
    assert largest.numel <= max(3 * max(2**16, 16 * 300 * 16) // 2, 300 * 16 * 16)
