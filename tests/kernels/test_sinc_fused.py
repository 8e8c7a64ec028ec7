"""The fused kernels against the reference by the accuracy rule, plus what only a GPU kernel can get wrong.

On a machine with a GPU they run there, elsewhere in Triton's interpreter, which takes seconds for the smallest shape:
shapes are tiny there, and some lists are split between the two precisions.
"""

import importlib
import itertools

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fourierformer.kernels.sinc import sinc_attention
from tests.helpers.sinc_cases import (
    DEVICE,
    NATIVE,
    PRECISIONS,
    assert_rule,
    check_fused,
    error,
    inputs,
    matmul_precision,
    needs_fused,
    quiet_interpreter,
    run_fused,
    take_passes,
)

pytestmark = [needs_fused, quiet_interpreter]
PHASES = list(Phase) if NATIVE else [Phase.explicit, Phase.generate]  # shrinking takes hundreds of examples
LARGEST_SHARE = 12  # memory of forward and backward over that of their inputs and outputs


def split(highest, high):
    """(case, precision): all cases in both precisions on a GPU, each in one or the other in the interpreter."""
    chosen = {p: [*highest, *high] for p in PRECISIONS} if NATIVE else {"highest": highest, "high": high}
    return [(case, precision) for precision, cases in chosen.items() for case in cases]


FULL = pytest.mark.full("takes Triton's interpreter seconds")
seconds_without_gpu = (lambda test: test) if NATIVE else FULL


def rest_in_full(cases, fast):
    """The interpreter takes seconds for a case: those that `fast` accepts stay in the fast tier."""
    return [pytest.param(*case, marks=() if NATIVE or fast(*case) else FULL) for case in cases]


@pytest.mark.parametrize(
    ("width", "precision"),
    rest_in_full(split([8, 10, 24, 30, 128], [16, 32, 48, 64, 96]), lambda width, _: width == 10),
)
def test_widths(width, precision):
    tensors, doutput = inputs(heads=1, queries=12, width=width, radius=torch.full((1, width), 2.0))
    check_fused(tensors, doutput, precision=precision, eps=1e-6, causal=True)


@pytest.mark.parametrize(
    ("tokens", "precision"), rest_in_full(split([1, 33, 197], [7, 257]), lambda tokens, _: tokens < 100)
)
def test_tokens(tokens, precision):
    tensors, doutput = inputs(heads=1, queries=tokens, width=4, radius=[[1.0] * 4])
    check_fused(tensors, doutput, precision=precision, eps=1e-6, causal=True)


@pytest.mark.parametrize(
    ("sizes", "precision", "causal"),
    rest_in_full(
        [
            (*case, causal)
            for case in split([(5, 12), (12, 5)], [(1, 70), (70, 2), (20, 100), (100, 20)])
            for causal in (False, True)
        ],
        lambda sizes, _, causal: (sizes, causal) in (((5, 12), False), ((70, 2), True)),
    ),
)
def test_queries_and_keys_differ_in_number(sizes, precision, causal):
    queries, keys = sizes
    tensors, doutput = inputs(1, 1, queries, keys, width=4, value_width=5, radius=[[1.0] * 4])
    check_fused(tensors, doutput, precision=precision, causal=causal)


# 1e-25 is too small for sums of plain weights: a key with a log-weight
@pytest.mark.parametrize(
    ("case", "precision"),
    rest_in_full(
        split([((), 2, 0.0), ((1, 4), 6, 1e-25)], [((2, 1), 4, 1e-6), ((2, 4), 4, 1.0)]),
        lambda case, _: case[0] in ((1, 4), (2, 1)),
    ),
)
def test_radius_shapes_powers_and_eps(case, precision):
    shape, power, eps = case
    radius = torch.randn(shape, generator=torch.Generator().manual_seed(0))  # some are negative
    tensors, doutput = inputs(queries=12, width=4, value_width=7, radius=radius)
    output, *gradients = run_fused(tensors, doutput, precision, power=power, eps=eps)
    assert gradients[-1].shape == shape
    assert_rule([output, *gradients], tensors, doutput, precision, power=power, eps=eps)


@pytest.mark.parametrize(("eps", "precision"), rest_in_full(split([0.0], [1e-6]), lambda eps, _: eps == 0))
def test_heads_with_arguments_of_every_size_in_one_call(eps, precision):
    """Heads whose largest |z| is far below 1, or near where the method changes (16, 42), or far above."""
    largest = torch.tensor([5.0, 15.9, 41.9, 75.0, 500.0, 1e-2] if NATIVE or eps else [15.9, 41.9, 500.0, 1e-2])
    tensors, doutput = inputs(heads=len(largest), queries=12, width=4)
    distance = (tensors[0][:, :, :, None] - tensors[1][:, :, None]).abs().amax((0, 2, 3, 4))
    tensors[3] = (largest / distance)[:, None].expand(-1, 4).contiguous()
    results = run_fused(tensors, doutput, precision, eps=eps, causal=True)
    for h in range(len(largest)):
        head = slice(h, h + 1)
        of_head = [[t[:, head] if t.dim() == 4 else t[head] for t in group] for group in (results, tensors)]
        assert_rule(*of_head, doutput[:, head], precision, eps=eps, causal=True)


@pytest.mark.parametrize(
    ("offset", "precision"),
    rest_in_full(itertools.product([100.0, 1e6], PRECISIONS), lambda offset, precision: precision == "high"),
)
def test_a_common_offset_costs_no_digits(offset, precision):
    (q, k, v, radius), doutput = inputs(heads=1, queries=12, width=4, radius=[[2.0] * 4])
    check_fused([q + offset, k + offset, v, radius], doutput, precision=precision, eps=1e-6)


@pytest.mark.parametrize(
    ("sizes", "width", "causal", "precision", "count"),
    rest_in_full(
        [
            (*case, precision, count)
            for case in [((20, 18), 6, True), ((66, 66), 4, True), ((5, 66), 20, False), ((130, 66), 4, True)]
            for precision in PRECISIONS
            for count in (1, 2)
        ],
        lambda sizes, width, causal, precision, count: (
            sizes == (20, 18) and (precision, count) in (("highest", 1), ("high", 2))
        ),
    ),
)
def test_one_and_two_passes_of_the_backward(sizes, width, causal, precision, count, monkeypatch):
    """With several blocks of queries and keys, more coordinates than are added up at once, queries without a key, and
    tiles in which no query sees a key. Small ones in heads of every kind."""
    queries, keys = sizes
    radius = torch.tensor([2.0, 8.0, 100.0] if queries < 60 else [2.0])[:, None].expand(-1, width)
    tensors, doutput = inputs(1, len(radius), queries, keys, width=width, value_width=5, radius=radius)
    take_passes(count, monkeypatch)
    results = run_fused(tensors, doutput, precision, eps=1e-6, causal=causal)
    for h in range(len(radius)):
        head = slice(h, h + 1)
        of_head = [[t[:, head] if t.dim() == 4 else t[head] for t in group] for group in (results, tensors)]
        assert_rule(*of_head, doutput[:, head], precision, eps=1e-6, causal=causal)


@pytest.mark.parametrize("multiple", rest_in_full([(2.0**-100,), (2.0**60,)], lambda multiple: multiple < 1))
def test_one_pass_has_room_for_gradients_of_any_size(multiple, monkeypatch):
    """Its slopes in float16 are relative to the largest of a tile."""
    take_passes(1, monkeypatch)
    tensors, doutput = inputs(heads=1, queries=12, width=4, radius=[[2.0] * 4])
    usual = run_fused(tensors, doutput, "high", eps=1e-6)
    scaled = run_fused(tensors, doutput * multiple, "high", eps=1e-6)
    for one, other in zip(usual[1:], scaled[1:], strict=True):
        assert error(other.double() / multiple, one.double()) < 1e-6


def test_one_pass_is_finite_where_gradients_have_no_reciprocal(monkeypatch):
    take_passes(1, monkeypatch)
    tensors, doutput = inputs(heads=1, queries=12, width=4, radius=[[2.0] * 4])
    _, *gradients = run_fused(tensors, doutput * 1e-42, "high", eps=1e-6)
    assert all(gradient.isfinite().all() for gradient in gradients)


def left_out(batch, keys, seed=0):
    """Some keys of each sequence, the first of all among them."""
    keep = torch.rand(batch, keys, generator=torch.Generator().manual_seed(seed)) < 0.6
    keep[:, 0], keep[:, 1] = False, True
    return keep


@pytest.mark.parametrize(
    ("sizes", "precision", "causal", "eps"),
    rest_in_full(
        [
            (*case, causal, eps)
            for case in split([(12, 12), (5, 70), (70, 5)], [(12, 12), (3, 20)])
            for causal, eps in itertools.product((False, True), (0.0, 1e-6))
        ],
        lambda sizes, precision, causal, eps: (
            (sizes, precision, causal, eps) in (((12, 12), "highest", True, 0.0), ((3, 20), "high", False, 1e-6))
        ),
    ),
)
def test_keys_that_are_left_out(sizes, precision, causal, eps):
    queries, keys = sizes
    tensors, doutput = inputs(2, 1, queries, keys, width=4, value_width=5, radius=[[2.0] * 4])
    options = {"precision": precision, "eps": eps, "causal": causal, "keep": left_out(2, keys)}
    check_fused(tensors, doutput, **options)


@seconds_without_gpu
@pytest.mark.parametrize(("garbage", "eps"), [(1e4, 1e-6), (float("nan"), 0.0), (float("inf"), 1e-6)])
def test_what_keys_hold_that_are_left_out_changes_no_bit(garbage, eps):
    """In heads of every kind: 16 and 32 features, and the printed formula. Neither does it choose the kind."""
    tensors, doutput = inputs(2, 3, queries=12, width=4, radius=[[2.0], [8.0], [100.0]])
    keep = left_out(2, 12)
    keep[1] = False
    dirty = [t.clone() for t in tensors]
    for t in dirty[1:3]:
        t.masked_fill_(~keep[:, None, :, None], garbage)
    options = {"precision": "highest", "eps": eps, "causal": True, "keep": keep}
    clean = run_fused(tensors, doutput, **options)
    assert all(torch.equal(a, b) for a, b in zip(run_fused(dirty, doutput, **options), clean, strict=True))
    output, dq, dk, dv, _ = clean
    assert not output[1].any()
    assert not dq[1].any()
    for gradient in (dk, dv):
        assert not gradient[~keep[:, None, :, None].expand_as(gradient)].any()
        assert gradient[0].any()


@seconds_without_gpu
def test_leaving_no_key_out_changes_no_bit():
    tensors, doutput = inputs(heads=3, queries=20, width=4, radius=[[2.0], [8.0], [100.0]])
    options = {"precision": "highest", "eps": 0.0, "causal": True}
    kept = run_fused(tensors, doutput, **options, keep=torch.ones(1, 20, dtype=torch.bool))
    assert all(torch.equal(a, b) for a, b in zip(kept, run_fused(tensors, doutput, **options), strict=True))


def test_a_common_offset_costs_no_digits_where_keys_are_left_out():
    (q, k, v, radius), doutput = inputs(heads=1, queries=12, width=4, radius=[[2.0] * 4])
    check_fused([q + 100, k + 100, v, radius], doutput, precision="highest", eps=1e-6, keep=left_out(1, 12))


@pytest.mark.parametrize(
    "dtype", rest_in_full([(torch.float16,), (torch.bfloat16,)], lambda dtype: dtype == torch.bfloat16)
)
def test_half_precision(dtype):
    tensors, doutput = inputs(heads=1, queries=12, width=8, radius=[[2.0] * 8])
    results = run_fused(tensors, doutput, "highest", dtype, eps=1e-6, causal=True)
    assert all(t.dtype == dtype for t in results)
    assert_rule(results, tensors, doutput, "high", dtype, eps=1e-6, causal=True)


def fill_with_garbage(allocate):
    def allocated(*arguments, **options):
        buffer = allocate(*arguments, **options)
        return buffer.fill_(float("nan") if buffer.is_floating_point() else 12345)

    return allocated


@seconds_without_gpu
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_same_numbers_twice_whatever_memory_held_before(precision, count, monkeypatch):
    # Two queries see no key; the second head needs the printed formula; nothing fills its block.
    tensors, doutput = inputs(queries=20, keys=18, width=6, value_width=5, radius=[[2.0], [100.0]])
    take_passes(count, monkeypatch)
    options = {"precision": precision, "eps": 0.0, "causal": True}
    clean = run_fused(tensors, doutput, **options)
    for owner, name in ((torch.Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like")):
        monkeypatch.setattr(owner, name, fill_with_garbage(getattr(owner, name)))
    assert torch.empty(1).isnan().all()
    poisoned = run_fused(tensors, doutput, **options)
    assert all(a.isfinite().all() and torch.equal(a, b) for a, b in zip(clean, poisoned, strict=True))


@seconds_without_gpu
def test_strided_and_expanded_inputs_give_the_same_numbers():
    tensors, doutput = inputs(batch=2, heads=2, queries=7, width=4, radius=1.0)
    tensors[1] = tensors[1][:1].expand(2, -1, -1, -1)
    output, dq, dk, dv, dradius = run_fused(tensors, doutput, "high", eps=1e-6)
    q, k, v, radius = (t.to(DEVICE, torch.float32) for t in tensors)
    leaves = [t.transpose(1, 2).contiguous().requires_grad_() for t in (q, v)]
    single = k[:1].clone().requires_grad_()
    radius.requires_grad_()
    with matmul_precision("high"):
        strided = sinc_attention(
            leaves[0].transpose(1, 2), single.expand(2, -1, -1, -1), leaves[1].transpose(1, 2), radius,
            eps=1e-6, backend="fused",
        )  # fmt: skip
        strided.backward(doutput.to(strided).mT.contiguous().mT)
    assert torch.equal(strided.detach().cpu(), output)
    assert torch.equal(leaves[0].grad.transpose(1, 2).cpu(), dq)
    assert torch.equal(leaves[1].grad.transpose(1, 2).cpu(), dv)
    assert torch.equal(radius.grad.cpu(), dradius)
    assert error(single.grad.cpu(), dk.double().sum(0, keepdim=True)) < 1e-6


@seconds_without_gpu
@settings(max_examples=60 if NATIVE else 4, phases=PHASES)
@given(
    heads=st.integers(1, 2),
    queries=st.integers(1, 300 if NATIVE else 14),
    keys=st.integers(1, 300 if NATIVE else 14),
    width=st.integers(1, 70 if NATIVE else 5),
    value_width=st.integers(1, 70 if NATIVE else 20),
    power=st.sampled_from([2, 4, 6, 10]),
    eps=st.sampled_from([0.0, 1e-30, 1e-6, 1.0]),
    causal=st.booleans(),
    radius=st.floats(-4, 4),
    precision=st.sampled_from(PRECISIONS),
    seed=st.integers(0, 1000),
)
def test_any_shape(heads, queries, keys, width, value_width, power, eps, causal, radius, precision, seed):
    tensors, doutput = inputs(1, heads, queries, keys, width, value_width, radius, seed=seed)
    check_fused(tensors, doutput, precision=precision, power=power, eps=eps, causal=causal)


def bytes_allocated(tokens):
    """Bytes allocated by forward and by backward, freed or not; and those of the inputs and outputs of both."""
    q, k, v = (torch.randn(1, 2, tokens, 16, requires_grad=True) for _ in range(3))
    radius = torch.ones(2, 16, requires_grad=True)
    doutput, allocated = torch.randn(1, 2, tokens, 16), []

    def count(call):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            result = call()
        allocated.append(sum(max(0, event.self_cpu_memory_usage) for event in profile.events()))
        return result

    output = count(lambda: sinc_attention(q, k, v, radius, eps=1e-6, causal=True, backend="fused"))
    count(lambda: output.backward(doutput))
    return allocated, 8 * q.nbytes  # q, k, v, output and a gradient of each


@pytest.mark.skipif(NATIVE, reason="counts what is allocated on a CPU; the test on the GPU measures")
def test_memory_is_linear_in_the_number_of_tokens(monkeypatch):
    interpreter = importlib.import_module("triton.runtime.interpreter")
    # Kernels that do nothing: what is left is the memory around them, at once for any length.
    monkeypatch.setattr(interpreter.InterpretedFunction, "run", lambda *arguments, **settings: None)
    short, _ = bytes_allocated(2048)
    long, owned = bytes_allocated(4096)
    for few, many in zip(short, long, strict=True):
        assert owned / 8 <= many < LARGEST_SHARE * owned
        assert many / few < 2.1


@pytest.mark.gpu
@pytest.mark.skipif(not NATIVE, reason="no CUDA device")
def test_peak_memory_on_the_gpu():
    shape = (1, 8, 16_384, 64)
    q, k, v = (torch.randn(shape, device="cuda", requires_grad=True) for _ in range(3))
    radius = torch.ones((), device="cuda", requires_grad=True)
    doutput = torch.randn(shape, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    sinc_attention(q, k, v, radius, causal=True, backend="fused").backward(doutput)
    torch.cuda.synchronize()
    # Eight tensors are inputs and outputs of forward and backward: q, k, v, output and a gradient of each.
    assert torch.cuda.max_memory_allocated() - before <= LARGEST_SHARE * 8 * q.nbytes


@pytest.mark.parametrize(("blocks", "reach"), [(slice(0, 1), 16.0), (slice(1, 3), 42.0)])
def test_the_table_is_a_quadrature_of_sinc_and_of_its_slope(blocks, reach):
    """The integral of cos(t z) over t from 0 to 1 is sinc z: the sum of features of x times those of y, z = x - y."""
    op = importlib.import_module("fourierformer.kernels.sinc.op")
    table = op.quadrature(torch.device("cpu")).double().numpy()[blocks]
    rate, root, slope = (np.expand_dims(table[:, row], -1) for row in range(3))

    def features(x):  # cosines in one half of a block, sines in the other
        angle = np.pi / 2 * rate * x
        return root * np.concatenate([np.cos(angle[:, :8]), np.sin(angle[:, 8:])], axis=1)

    z = np.linspace(-reach, reach, 4000)  # an even number of points: none is 0
    y = np.random.default_rng(0).uniform(-reach / 2, reach / 2, z.shape)
    slopes = slope * np.roll(features(y + z), 8, axis=1)
    sinc, sinc_slope = ((f * features(y)).sum((0, 1)) for f in (features(y + z), slopes))
    assert np.abs(sinc - np.sin(z) / z).max() < 2e-7
    assert np.abs(sinc_slope - (np.cos(z) / z - np.sin(z) / z**2)).max() < 2e-7


@pytest.mark.parametrize("first", [0, 192, 2**19, 2**22])
def test_offsets_of_features_in_long_sequences(first):
    """From 524,288 tokens on, their number no longer fits 32 bits: 64 coordinates, 32 features, two parts."""
    kernel = importlib.import_module("tests.helpers.feature_offsets_kernel")
    offsets = torch.zeros(128, dtype=torch.int64, device=DEVICE)
    kernel.store_offsets[(1,)](offsets, first // 64, COUNT=64, STORED=64, NODES=32, PRECISE=True)
    kernel.store_offsets[(1,)](offsets[64:], first // 64 + 1, COUNT=64, STORED=64, NODES=32, PRECISE=True)
    of_panel = 2 * 64 * 64 * 32
    assert offsets.tolist() == [n // 64 * of_panel + n % 64 * 32 for n in range(first, first + 128)]
    assert first < 2**19 or offsets[-1] > 2**31


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("token", [0, 70, 700])
def test_the_number_of_features_follows_from_all_tokens(side, token):
    """Of heads in which one coordinate of one token is near, far, further and NaN: 16, 32 features, and 0 twice."""
    op = importlib.import_module("fourierformer.kernels.sinc.op")
    tensors = [torch.rand(1, 4, 701, 5, device=DEVICE) for _ in range(2)]
    tensors[side][0, :, token, 3] = torch.tensor([5.0, 20.0, 50.0, float("nan")])
    q, k = tensors
    tier, radius = torch.full((4,), 7, dtype=torch.int32, device=DEVICE), torch.ones(4, 5, device=DEVICE)
    plan = op.ForwardPlan(q.device, 4, 1e-6, True, True, *op.Facts.of(q, k, q, radius, None))
    plan.choose_nodes(q, k, radius, tier)
    assert tier.tolist() == [16, 32, 0, 0]


def test_the_backward_keeps_the_choice_of_the_forward(monkeypatch):
    op = importlib.import_module("fourierformer.kernels.sinc.op")
    tensors, doutput = inputs(heads=3, queries=12, width=4, radius=[[2.0], [8.0], [100.0]])
    leaves = [t.to(DEVICE, torch.float32).requires_grad_() for t in tensors]
    output = sinc_attention(*leaves, eps=1e-6, backend="fused")
    monkeypatch.setattr(op, "forward_plan", None)  # cannot be called
    output.backward(doutput.to(output))
    full = [output.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)]
    assert_rule(full, tensors, doutput, eps=1e-6)
