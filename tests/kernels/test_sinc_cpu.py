"""The two backends for a CPU against the reference, plus what only a blocked backend can get wrong."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fourierformer.kernels.sinc import portable, sinc_attention
from fourierformer.kernels.sinc.reference import log_sinc_slope, log_sinc_value, sinc_attention_reference
from tests.helpers.sinc_cases import BACKENDS, CPU_BACKENDS, NAMES, assert_float32_class, error, inputs, run

pytestmark = pytest.mark.parametrize("backend", CPU_BACKENDS)


def check_against_reference(backend, tensors, doutput, power=4, eps=0.0, causal=False):
    """Float64 parity to rounding, and the accuracy rule in float32."""
    ours = BACKENDS[backend]
    options = {"power": power, "eps": eps, "causal": causal, "keep": None}
    truth = run(sinc_attention_reference, tensors, doutput, **options)
    for name, actual, exact in zip(NAMES, run(ours, tensors, doutput, **options), truth, strict=True):
        assert (actual - exact).norm() < 1e-9 * exact.norm() + 1e-12, name
    # One radius per coordinate: the gradient of a single one may cancel to almost nothing, which has no relative error.
    q, k, v, radius = tensors
    tensors = [q, k, v, radius.expand(q.shape[1], q.shape[3]).contiguous()]
    truth = run(sinc_attention_reference, tensors, doutput, **options)
    direct = run(sinc_attention_reference, tensors, doutput, torch.float32, **options)
    assert_float32_class(run(ours, tensors, doutput, torch.float32, **options), direct, truth)


@pytest.mark.parametrize("shape", [(), (2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("eps", [0.0, 1e-2])
@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck(backend, shape, eps, causal):
    radius = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)[: torch.Size(shape).numel()].reshape(shape)
    tensors, _ = inputs(queries=4, keys=5, width=3, value_width=2, radius=radius)
    leaves = [t.requires_grad_() for t in tensors]
    keep = torch.tensor([[True, False, True, True, True]])
    assert torch.autograd.gradcheck(
        lambda *a: BACKENDS[backend](*a, power=4, eps=eps, causal=causal, keep=keep), leaves, fast_mode=True
    )


# (radius, scale of q and k, width): from nearly equal weights to a kernel with hundreds of zeros between tokens
RANGES = [(1e-6, 1.0, 16), (0.43, 0.23, 16), (2.0, 0.23, 10), (2.0, 1.0, 16), (2.0, 1.0, 64), (1.0, 0.4, 64)]
RANGES += [(4.0, 1.0, 64), (10.0, 1.0, 16), (10.0, 1.0, 64), (100.0, 1.0, 16)]


def every_second(cases, others):
    """Each of `cases` with one of the two `others` in the fast tier, in turns, and with the other one in the full."""
    return [
        pytest.param(*case, *other, marks=() if (number + place) % 2 else pytest.mark.full("with the other setting"))
        for number, case in enumerate(cases)
        for place, other in enumerate(others)
    ]


@pytest.mark.parametrize(("radius", "scale", "width", "power", "causal"), every_second(RANGES, [(2, True), (4, False)]))
def test_accuracy_over_the_range_of_arguments(backend, radius, scale, width, power, causal):
    tensors, doutput = inputs(batch=2, queries=65, width=width, radius=radius, scale=scale)
    check_against_reference(backend, tensors, doutput, power=power, causal=causal)


def test_weights_that_are_nothing_beside_eps(backend):
    """In most rows eps = 1e-6 exceeds the sum of weights, down to 1e-20. The gradients must still be right."""
    tensors, doutput = inputs(queries=40, width=16, radius=30.0)
    check_against_reference(backend, tensors, doutput, power=2, eps=1e-6)


def test_tokens_far_from_the_origin(backend):
    """Only differences matter: here 0.5 between tokens near 20."""
    (q, k, v, radius), doutput = inputs(queries=40, width=16)
    tensors = [(q + 20).float().double(), (k + 20).float().double(), v, radius]
    check_against_reference(backend, tensors, doutput, eps=1e-6, causal=True)


@pytest.mark.parametrize(
    ("queries", "width", "eps"),
    every_second(itertools.product([1, 7, 33, 197], [1, 8, 24, 30, 48]), [(0.0,), (1e-2,)]),
)
def test_odd_sizes(backend, queries, width, eps):
    """With one key its gradient is eps / w of two terms that cancel: 1e-6 would leave the last digits to chance."""
    tensors, doutput = inputs(heads=1, queries=queries, width=width, radius=1.0)
    check_against_reference(backend, tensors, doutput, eps=eps, causal=True)


@pytest.mark.parametrize(("width", "value_width"), [(1, 256), (256, 1), (129, 65)])
def test_wide_heads(backend, width, value_width):
    tensors, doutput = inputs(queries=20, width=width, value_width=value_width, radius=0.5)
    check_against_reference(backend, tensors, doutput, eps=1e-6, causal=True)


@pytest.mark.parametrize(("queries", "keys"), [(1, 256), (256, 2), (40, 100), (100, 40)])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_and_keys_differ_in_number(backend, queries, keys, causal):
    tensors, doutput = inputs(queries=queries, keys=keys, value_width=5)
    check_against_reference(backend, tensors, doutput, causal=causal)


def test_more_keys_than_one_block_holds(backend):
    tensors, doutput = inputs(heads=1, queries=30, keys=700, width=8)  # compiled: 256 keys in a block
    check_against_reference(backend, tensors, doutput, eps=1e-6)
    tensors, doutput = inputs(heads=1, queries=700, keys=700, width=4)
    check_against_reference(backend, tensors, doutput, causal=True)


def test_the_last_query_alone_equals_the_last_row(backend):
    (q, k, v, radius), _ = inputs(queries=64)
    options = {"power": 4, "eps": 1e-6, "causal": True}
    whole = BACKENDS[backend](q, k, v, radius, **options, keep=None)
    last = BACKENDS[backend](q[:, :, -1:], k, v, radius, **options, keep=None)
    assert error(last, whole[:, :, -1:]) < 1e-12


def changed_bits(backend, change, rows):
    """Whether anything about `rows` changes, output or gradients, when `change` is made to the inputs."""
    tensors, doutput = inputs(batch=2, queries=70)
    doutput[:, :, 50:] = 0  # only earlier queries have gradients
    runs = []
    for changed in (False, True):
        q, k, v, radius = (t.float() for t in tensors)
        if changed:
            q, k, v = change(*(t.clone() for t in (q, k, v)))
        runs.append(run(sinc_attention, [q, k, v, radius], doutput, causal=True, eps=1e-6, backend=backend))
    return any(not torch.equal(a[rows], b[rows]) for a, b in zip(*(results[:4] for results in runs), strict=True))


@pytest.mark.parametrize("factor", [1e-3, 1.0, 30.0])
def test_the_future_does_not_change_a_bit(backend, factor):
    def change(q, k, v):
        for t in (q, k, v):
            t[:, :, 50:] = factor * t[:, :, 50:].flip(2)
        return q, k, v

    assert not changed_bits(backend, change, (slice(None), slice(None), slice(0, 50)))


def test_other_rows_of_a_batch_do_not_change_a_bit(backend):
    def change(q, k, v):
        for t in (q, k, v):
            t[1] *= 100
        return q, k, v

    assert not changed_bits(backend, change, (slice(0, 1),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [5, 16, 20])
def test_far_tokens_do_not_change_a_bit_of_near_ones(backend, dtype, width):
    """`compiled` computes tiles without a distance of a quarter turn in another way, in the same bits: here those of
    queries beside a far one, and of keys beside hidden ones."""
    tensors, doutput = inputs(queries=12, keys=40, width=width, radius=0.43, scale=0.5)
    far = [t.clone() for t in tensors]
    far[0][:, :, 5] *= 100
    far[1][:, :, 36:] *= 100  # seen by the last four queries only
    options = {"power": 4, "eps": 1e-6, "causal": True, "backend": backend}
    doutput[:, :, 8:] = 0
    runs = [run(sinc_attention, case, doutput, dtype, **options)[:2] for case in (tensors, far)]
    others = [0, 1, 2, 3, 4, 6, 7]
    for with_near, with_far in zip(*runs, strict=True):
        assert torch.equal(with_near[:, :, others], with_far[:, :, others])


@settings(max_examples=25)
@given(
    heads=st.integers(1, 3),
    queries=st.integers(1, 70),
    keys=st.integers(1, 70),
    width=st.integers(1, 20),
    value_width=st.integers(1, 20),
    power=st.sampled_from([2, 4, 6, 10, 66]),
    eps=st.sampled_from([0.0, 1e-6, 1.0]),
    causal=st.booleans(),
    radius=st.floats(-4, 4).filter(lambda radius: abs(radius) > 1e-4 or radius == 0),
    seed=st.integers(0, 1000),
)
def test_any_shape(backend, heads, queries, keys, width, value_width, power, eps, causal, radius, seed):
    radius *= min(1, 2 / math.sqrt(power))  # a sharper kernel would leave nothing that float32 can hold
    tensors, doutput = inputs(2, heads, queries, keys, width, value_width, radius, seed=seed)
    check_against_reference(backend, tensors, doutput, power=power, eps=eps, causal=causal)


@pytest.mark.parametrize("shape", [(), (3, 1), (1, 16), (3, 16)])
def test_every_radius_shape_in_float32(backend, shape):
    radius = 0.5 + torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tensors, doutput = inputs(batch=2, heads=3, queries=65, radius=radius)
    check_against_reference(backend, tensors, doutput, eps=1e-6, causal=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("garbage", [1e4, math.nan])
def test_keys_left_out_are_as_if_they_were_not_there(backend, causal, garbage):
    tensors, doutput = inputs(batch=2, queries=40, keys=50)
    keep = torch.rand(2, 50, generator=torch.Generator().manual_seed(0)) < 0.6
    keep[1, :30] = False  # a whole vector of keys, and rows that see none
    options = {"power": 4, "eps": 1e-6, "causal": causal}
    truth = run(sinc_attention_reference, tensors, doutput, keep=keep, **options)
    dirty = [t.clone() for t in tensors]
    for t in dirty[1:3]:
        t.masked_fill_(~keep[:, None, :, None], garbage)
    output, dq, dk, dv, dradius = run(BACKENDS[backend], dirty, doutput, keep=keep, **options)
    for name, ours, exact in zip(NAMES, (output, dq, dk, dv, dradius), truth, strict=True):
        assert error(ours, exact) < 1e-9, name
    left_out = ~keep[:, None, :, None].expand_as(dk)
    assert not dk[left_out].any()
    assert not dv[left_out].any()


def test_same_numbers_twice_and_for_any_number_of_threads(backend):
    tensors, doutput = inputs(batch=1, heads=1, queries=600, width=8)
    options = {"power": 4, "eps": 0.0, "causal": True, "keep": None}
    before, results = torch.get_num_threads(), []
    counts = (1, 2, 5) if backend == "compiled" else (before, before)
    try:
        for threads in counts:
            torch.set_num_threads(threads)
            results.append(run(BACKENDS[backend], tensors, doutput, torch.float32, **options))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_strided_inputs(backend):
    tensors, doutput = inputs(batch=2, queries=65)
    options = {"power": 4, "eps": 0.0, "causal": True, "keep": None}
    truth = run(BACKENDS[backend], tensors, doutput, torch.float32, **options)
    strided = [t.float().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in tensors[:3]]
    radius = tensors[3].float().requires_grad_()
    output = BACKENDS[backend](*strided, radius, **options)
    output.backward(doutput.float().mT.contiguous().mT)
    for ours, exact in zip([output, *(t.grad for t in (*strided, radius))], truth, strict=True):
        assert error(ours, exact.double()) < 1e-5


def test_one_sequence_seen_as_many(backend):
    """Strides of 0: the same keys and values for every sequence and every head."""
    (q, k, v, radius), doutput = inputs(batch=3, queries=9)
    k, v = (t[:1, :1].expand_as(t) for t in (k, v))
    check_against_reference(backend, [q, k, v, radius], doutput[:1, :1, :1].expand_as(doutput), eps=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_and_cast_back(backend, dtype):
    tensors, doutput = inputs(queries=65)
    rounded, doutput = [t.to(dtype) for t in tensors], doutput.to(dtype)
    options = {"power": 4, "eps": 1e-6, "causal": True, "backend": backend}
    half = run(sinc_attention, rounded, doutput, **options)
    single = run(sinc_attention, rounded, doutput, torch.float32, **options)
    assert all(torch.equal(a, b.to(dtype)) for a, b in zip(half, single, strict=True))


@pytest.mark.parametrize("where", ["q", "k", "radius"])
def test_nan_is_passed_on(backend, where):
    """All weights of the row, or of the head, that has one."""
    tensors, _ = inputs(queries=9)
    tensors = [tensor.clone() for tensor in tensors]
    q, k, v, radius = tensors
    radius = radius.expand(q.shape[1], q.shape[3]).clone()
    hit = {"q": q[0, 1], "k": k[0, 1], "radius": radius[1:2]}[where]
    hit[0, 0] = math.nan
    output = BACKENDS[backend](q, k, v, radius, power=4, eps=1e-6, causal=False)
    spoilt = output.isnan().any(-1)
    assert spoilt[0, 1, 0]
    assert spoilt[0, 1].all() == (where != "q")
    assert not spoilt[:, 0].any()


@pytest.mark.parametrize(("causal", "number"), [(True, 5), (False, 0)])
@pytest.mark.parametrize("radius", [0.0, 1.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_infinite_coordinate_of_a_key_counts_as_a_finite_one_far_away(backend, dtype, radius, causal, number):
    """With radius 0 it changes nothing, else the key has no weight; either way all gradients are finite."""
    tensors, doutput = inputs(queries=12, width=3, radius=torch.tensor([[radius, 1.5, 0.7]]))
    tensors[1][:, 0, number, 0] = math.inf
    tensors[1][:, 1, number, 0] = -math.inf
    options = {"power": 4, "eps": 0.0, "causal": causal, "keep": None}
    truth = run(sinc_attention_reference, tensors, doutput, **options)
    for name, ours, exact in zip(NAMES, run(BACKENDS[backend], tensors, doutput, dtype, **options), truth, strict=True):
        assert error(ours, exact) < 1e-5, name


def test_a_precision_set_for_one_kind_of_device_is_left_as_it_is(backend):
    """torch then refuses to read its general setting."""
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    expected = BACKENDS[backend](q, k, v, torch.tensor(1.0), power=4, eps=1e-6, causal=True)
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        output = BACKENDS[backend](q, k, v, torch.tensor(1.0), power=4, eps=1e-6, causal=True)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.mkldnn.matmul.fp32_precision == before[1]
    finally:
        torch.backends.cuda.matmul.fp32_precision = before[0]
    assert torch.equal(output, expected)


def test_autocast_and_reduced_matmul_precision_change_nothing(backend):
    tensors, doutput = inputs(queries=65)
    options = {"power": 4, "eps": 1e-6, "causal": True, "keep": None}
    plain = run(BACKENDS[backend], tensors, doutput, torch.float32, **options)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", torch.bfloat16):
            inside = run(BACKENDS[backend], tensors, doutput, torch.float32, **options)
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
def test_no_tensor_is_larger_than_a_tile_or_linear_in_the_tokens(backend, dtype, monkeypatch):
    monkeypatch.setattr(portable, "TILE", 2**14)
    tensors, doutput = inputs(batch=2, heads=4, queries=150, width=16)
    with Largest() as largest:
        run(BACKENDS[backend], tensors, doutput, dtype, power=4, eps=0.0, causal=False, keep=None)
    # An input has 8 x 150 x 16 = 19,200 numbers, all pairs are 180,000.
    assert largest.numel <= 2 * 8 * 150 * 16


def test_formulas_without_branches_are_the_printed_ones(backend):
    if backend != "portable":
        pytest.skip("formulas of the portable backend")
    for dtype, digits in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        sizes = torch.cat((torch.tensor([0.0, 1e-300, 0.5]), torch.logspace(-20, 3, 20_001)))
        z = torch.cat((sizes, -sizes)).to(dtype)
        exact = log_sinc_slope(z.double())
        # The logarithm also where a factor is nearly 0, so relative to 1; the slope to itself, near its zeros to 0.1.
        torch.testing.assert_close(portable.log_sinc(z).double(), log_sinc_value(z.double()), rtol=digits, atol=digits)
        assert ((portable.log_sinc_slope(z).double() - exact).abs() <= digits * exact.abs().clamp_min(0.1)).all()
        small = z.abs() < 0.4  # where the closed form would have lost every digit
        torch.testing.assert_close(portable.log_sinc_slope(z)[small].double(), exact[small], rtol=digits, atol=1e-300)
        assert portable.log_sinc_slope(z[:1]).item() == 0
        unknown = torch.tensor([math.nan], dtype=dtype)
        assert portable.log_sinc(unknown).isnan().all()
        assert portable.log_sinc_slope(unknown).isnan().all()


def test_no_weight_is_too_small_to_be_a_normal_number(backend):
    if backend != "portable":
        pytest.skip("formulas of the portable backend")
    for dtype in (torch.float32, torch.float64):
        scores = torch.linspace(-800, 0, 4001, dtype=dtype)
        weights = portable.weights_of(scores.clone())
        assert weights[[0, -1]].tolist() == [0, 1]
        assert weights[weights > 0].min() > 1e6 * torch.finfo(dtype).tiny  # room for gradients that are smaller still
        kept = weights > 0
        torch.testing.assert_close(weights[kept], scores[kept].exp())
        assert portable.weights_of(torch.tensor([math.nan, -math.inf], dtype=dtype)).tolist() == pytest.approx(
            [math.nan, 0.0], nan_ok=True
        )
