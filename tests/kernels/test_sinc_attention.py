"""The public function: every backend stays finite on hostile numbers; wrong arguments end in one clear message."""

import itertools
from types import SimpleNamespace

import pytest
import torch

import fourierformer
from fourierformer.kernels import sinc
from fourierformer.kernels.sinc import choose_backend, sinc_attention, why_not_fused
from tests.helpers.sinc_cases import (
    CPU_BACKENDS,
    DEVICE,
    EVERY_BACKEND,
    NAMES,
    NATIVE,
    PRECISIONS,
    device_of,
    inputs,
    matmul_precision,
    needs_compiled,
    needs_fused,
    quiet_interpreter,
    run,
)

PI = 3.141592653589793


def hostile(heads=2, queries=40):
    """name -> (q, k, v, radius), float64."""
    (q, k, v, radius), _ = inputs(heads=heads, queries=queries, width=8)
    zeros = torch.zeros_like(q)
    grid = zeros + PI * torch.randint(1, 9, q.shape, generator=torch.Generator().manual_seed(0))
    one = torch.tensor(1.0, dtype=torch.float64)
    spread = q.clone()
    spread[:, :, 3] = 1e30
    return {
        "q equals k": (q, q.clone(), v, radius),
        "all tokens equal": (zeros, zeros, v, radius),
        "far apart": (q + 1e4, k, v, radius),
        "very far apart": (q + 1e30, k - 1e30, v, radius),
        "extremely far apart": (zeros + 1e36, zeros - 1e36, v, radius),
        "tiny differences": (q * 1e-30, k * 1e-30, v, radius),
        "subnormal differences": (q * 1e-42, k * 1e-42, v, radius),
        "one token far away": (spread, k, v, radius),
        "every sine zero": (grid, zeros, v, one),
        "radius 0": (q, k, v, radius * 0),
        "radius negative": (q, k, v, -radius),
        "radius 1e4": (q, k, v, radius * 1e4),
        "radius 1e30": (q, k, v, radius * 1e30),
        "radius and queries 1e30": (q * 1e30, k * 1e30, v, radius * 1e30),
        "radius 1e-30": (q, k, v, radius * 1e-30),
    }


def assert_finite(cases, dtype, **options):
    for name, tensors in cases.items():
        doutput = torch.ones_like(tensors[2])
        results = run(sinc_attention, tensors, doutput, dtype, device_of(options["backend"]), **options)
        for what, value in zip(NAMES, results, strict=True):
            assert value.isfinite().all(), f"{what} is not finite: {name}"


@pytest.mark.parametrize("backend", [*CPU_BACKENDS, "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("causal", [False, True])
def test_finite_for_any_finite_input(backend, dtype, eps, causal):
    assert_finite(hostile(), dtype, eps=eps, causal=causal, backend=backend)


@pytest.mark.full("many cases in Triton's interpreter")
@needs_fused
@quiet_interpreter
@pytest.mark.parametrize(
    ("precision", "eps"),
    list(itertools.product(PRECISIONS, (0.0, 1e-6))),
)
def test_fused_is_finite_for_any_finite_input(precision, eps):
    cases = hostile() if NATIVE else hostile(heads=1, queries=12)
    with matmul_precision(precision):
        assert_finite(cases, torch.float32, eps=eps, causal=True, backend="fused")


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_overflowing_differences_do_not_poison_the_output(backend):
    (q, k, v, radius), _ = inputs(queries=9)
    q, k = torch.full_like(q, 3e38), torch.full_like(k, -3e38)
    tensors = [t.to(device_of(backend), torch.float32) for t in (q, k, v, radius)]
    assert sinc_attention(*tensors, backend=backend).isfinite().all()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_not_a_number_is_not_hidden(backend):
    tensors, doutput = inputs(queries=70, width=8)
    tensors[0][0, 0, 3, 2] = float("nan")
    output, dq, *_ = run(sinc_attention, tensors, doutput, torch.float32, device_of(backend), backend=backend)
    assert output[0, 0, 3].isnan().all()
    assert dq[0, 0, 3].isnan().any()
    assert output[0, 1].isfinite().all()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_without_weight_are_zero(backend, dtype):
    if backend == "fused" and dtype == torch.float64:
        pytest.skip("the fused backend refuses float64")
    tensors, doutput = inputs(queries=50, keys=20, width=8)
    output, dq, *_ = run(sinc_attention, tensors, doutput, dtype, device_of(backend), causal=True, backend=backend)
    assert not output[:, :, :30].any()  # bottom-right alignment: the first query that sees a key is the 31st
    assert not dq[:, :, :30].any()
    assert torch.allclose(output[:, :, 30], tensors[2][:, :, 0].to(dtype), atol=1e-6)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_eps_decides_what_a_lost_query_gets(backend):
    (q, k, v, radius), _ = inputs(queries=20)
    tensors = [t.to(device_of(backend), torch.float32) for t in (q + 100.0, k, v, radius)]
    assert sinc_attention(*tensors, eps=1e-6, backend=backend).abs().max() < 1e-20
    assert sinc_attention(*tensors, eps=0.0, backend=backend).abs().max() > 1e-3


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_autocast_mixes_dtypes_and_changes_no_arithmetic(backend):
    tensors, _ = inputs(queries=12, width=8)
    device = device_of(backend)
    q, k, v, radius = (t.to(device, torch.float32) for t in tensors)
    rounded = k.bfloat16()
    with torch.autocast(device, torch.bfloat16):
        inside = sinc_attention(q, k, v, radius, backend=backend)
        mixed = sinc_attention(q, rounded, v, radius, backend=backend)
    assert inside.dtype == mixed.dtype == torch.float32
    assert torch.equal(inside, sinc_attention(q, k, v, radius, backend=backend))
    assert torch.equal(mixed, sinc_attention(q, rounded.float(), v, radius, backend=backend))


@needs_compiled
def test_auto_on_a_cpu_is_compiled_and_said_once(monkeypatch):
    lines = []
    monkeypatch.setattr(sinc.log, "info", lambda text, *values: lines.append(text % values))
    (q, k, v, radius), _ = inputs()
    sinc._announced.clear()
    assert torch.equal(sinc_attention(q, k, v, radius), sinc_attention(q, k, v, radius, backend="compiled"))
    sinc_attention(q, k, v, radius)
    assert len([line for line in lines if "built for this processor" in line]) == 1
    assert choose_backend(q)[0] == "compiled"
    assert choose_backend(q, "reference") == ("reference", "chosen by name")


def test_auto_is_portable_where_nothing_can_be_built(monkeypatch):
    monkeypatch.setattr(sinc.library, "_obstacle", lambda: "no C++ compiler found")
    assert choose_backend(torch.zeros(1)) == ("portable", "no C++ compiler found")
    with pytest.raises(
        ValueError, match="'compiled' cannot run here: no C\\+\\+ compiler found; backend='auto' chooses one that can"
    ):
        choose_backend(torch.zeros(1), "compiled")


def test_an_unknown_backend_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'cuda'; available: auto, fused, compiled, portable, reference"):
        choose_backend(torch.zeros(1), "cuda")


def on_a_gpu(major, monkeypatch):
    """What `choose_backend` looks at of a tensor on an NVIDIA GPU of that compute capability."""
    monkeypatch.setattr(sinc, "_compute_capability_major", lambda device: major)
    return SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, is_cuda=True)


def test_auto_is_fused_on_a_gpu_that_can(monkeypatch):
    monkeypatch.setattr(sinc, "HAS_TRITON", True)
    assert choose_backend(on_a_gpu(8, monkeypatch)) == ("fused", "Triton on a GPU")
    name, reason = choose_backend(on_a_gpu(7, monkeypatch))
    assert name == "portable"
    assert "compute capability 8.0" in reason
    monkeypatch.setattr(sinc, "HAS_TRITON", False)
    assert choose_backend(on_a_gpu(9, monkeypatch)) == ("portable", "triton is not installed")


@pytest.mark.parametrize(
    ("shared", "dtype", "widest"),
    [(99, torch.float32, 128), (99, torch.bfloat16, 256), (227, torch.float32, 256), (227, torch.bfloat16, 512)],
)
def test_auto_is_portable_for_heads_whose_backward_finds_too_little_shared_memory(shared, dtype, widest, monkeypatch):
    monkeypatch.setattr(sinc, "HAS_TRITON", True)
    facts = SimpleNamespace(shared_memory_per_block_optin=shared * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    q = on_a_gpu(9, monkeypatch)
    q.dtype = dtype
    assert choose_backend(q, width=widest)[0] == "fused"
    name, reason = choose_backend(q, width=widest + 1)
    assert name == "portable"
    assert reason.endswith(f"at most {widest}")


def test_inside_a_compiled_graph_the_precision_of_products_is_read_and_followed():
    """Where heads are wide, and where kernel_ridge and local_linear choose their products."""
    before = torch.get_float32_matmul_precision()
    compiled = torch.compile(lambda x: x + sinc.is_precise(x.dtype), fullgraph=True, backend="eager")
    try:
        for precision, found in (("highest", 1.0), ("high", 0.0), ("highest", 1.0)):
            torch.set_float32_matmul_precision(precision)
            assert compiled(torch.zeros(1)).item() == found
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("version", "runs"), [((3, 6), False), ((3, 7), False), ((3, 8), True), ((4, 0), True)])
def test_fused_needs_a_triton_that_compiles_for_tensor_memory(version, runs, monkeypatch):
    """For 10.0, 3.6 and 3.7 compile some kernels of 32 features to a trap, and one pass of the backward to an error."""
    monkeypatch.setattr(sinc, "HAS_TRITON", True)
    monkeypatch.setattr(sinc, "_triton_version", lambda: version)
    assert (choose_backend(on_a_gpu(10, monkeypatch))[0] == "fused") is runs
    assert choose_backend(on_a_gpu(9, monkeypatch))[0] == choose_backend(on_a_gpu(12, monkeypatch))[0] == "fused"


def test_fused_says_why_not(monkeypatch):
    with pytest.raises(ValueError, match="'fused' cannot run here: it computes in float32, q is float64"):
        choose_backend(torch.zeros(1, dtype=torch.float64), "fused")
    assert "device type 'meta'" in why_not_fused(torch.zeros(1, device="meta"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        choose_backend(torch.zeros(1), "fused")


@needs_fused
def test_fused_refuses_float64_before_it_computes():
    tensors = [t.to(DEVICE) for t in inputs(queries=2, width=4)[0]]
    with pytest.raises(ValueError, match="q is float64"):
        sinc_attention(*tensors, backend="fused")


@pytest.mark.parametrize("power", [3, 1, 0, -2, 2.5, True])
def test_power_must_be_even(power):
    tensors, _ = inputs()
    with pytest.raises(ValueError, match="non-negative"):
        sinc_attention(*tensors, power=power)


@pytest.mark.parametrize("eps", [-1e-9, float("nan"), float("inf")])
def test_eps_must_not_be_negative(eps):
    tensors, _ = inputs()
    with pytest.raises(ValueError, match="eps must be a finite number >= 0"):
        sinc_attention(*tensors, eps=eps)


@pytest.mark.parametrize(
    ("batch", "queries", "keys", "value_width"), [(0, 5, 5, 3), (2, 0, 5, 3), (2, 5, 0, 3), (2, 5, 5, 0)]
)
@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_nothing_to_see_or_nobody_to_ask(backend, batch, queries, keys, value_width):
    shapes = [(batch, 2, queries, 4), (batch, 2, keys, 4), (batch, 2, keys, value_width)]
    leaves = [torch.ones(shape, device=device_of(backend), requires_grad=True) for shape in shapes] + [
        torch.ones((), device=device_of(backend), requires_grad=True)
    ]
    output = sinc_attention(*leaves, backend=backend)
    output.sum().backward()
    assert output.shape == (batch, 2, queries, value_width)
    assert not output.any()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)


@pytest.mark.parametrize("number", [100.0, float("inf"), float("nan")])
def test_without_keys_the_output_is_zero_whatever_the_queries_hold(number):
    q = torch.full((1, 2, 1024, 8), number, dtype=torch.float16)  # the sum of hundreds overflows, too
    k = q[:, :, :0]
    assert not sinc_attention(q, k, k, torch.tensor(1.0)).any()


def test_shapes_and_dtypes_are_checked():
    (q, k, v, radius), _ = inputs(heads=2, queries=5, width=4)
    cases = [
        ((q[0], k, v, radius), r"must be \(batch, heads, tokens, width\)"),
        ((q[..., :3], k, v, radius), "same width"),
        ((q, k, v[:, :, :4], radius), "same number of tokens"),
        ((q[:, :1], k, v, radius), "batch and heads"),
        ((q.float(), k, v, radius), "one dtype"),
        ((q, k, v, radius.expand(4)), r"radius must have shape \(\), \(2, 1\) per head, \(1, 4\) per coordinate"),
        ((q.int(), k, v, radius), "q must be floating point"),
        ((q[..., :0], k[..., :0], v, radius), "at least one coordinate"),
        ((q.to("meta"), k, v, radius), "q is on meta but k is on cpu"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            sinc_attention(*arguments)
    with pytest.raises(TypeError, match="radius must be a tensor"):
        sinc_attention(q, k, v, 2.0)
    for keep in (torch.ones(1, 4, dtype=torch.bool), torch.ones(1, 5)):
        with pytest.raises(ValueError, match=r"keep must be a bool tensor \(batch, keys\)"):
            sinc_attention(q, k, v, radius, keep=keep)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
@pytest.mark.parametrize("garbage", [1e4, float("nan")])
def test_public_function_leaves_keys_out(backend, garbage):
    """The content of the keys that are left out, NaN too, changes nothing; the last sequence has only such keys, and
    gets zeros."""
    device = device_of(backend)
    tensors, doutput = inputs(batch=3, heads=1, queries=6, keys=9, width=4)
    keep = torch.tensor([[1, 0, 1, 1, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0, 1, 0], [0] * 9], dtype=torch.bool)
    dirty = [tensors[0], *(t.masked_fill(~keep[:, None, :, None], garbage) for t in tensors[1:3]), tensors[3]]
    q, k, v, radius = (t.to(device, torch.float32).requires_grad_() for t in dirty)
    output = fourierformer.fourier_attention(q, k, v, radius, keep=keep.to(device), backend=backend)
    output.backward(doutput.to(output))
    for b in range(2):
        alone = [t[b : b + 1].to(device, torch.float32) for t in tensors[:3]]
        alone[1:] = [t[:, :, keep[b]] for t in alone[1:]]
        expected = fourierformer.fourier_attention(*alone, 2.0, backend=backend)
        torch.testing.assert_close(output[b : b + 1], expected, rtol=1e-4, atol=1e-5)
    assert not output[2].any()
    assert all(t.grad.isfinite().all() for t in (q, k, v, radius))
    assert not q.grad[2].any()
    for gradient in (k.grad.cpu(), v.grad.cpu()):
        assert not gradient[~keep[:, None, :, None].expand_as(gradient)].any()


def test_public_function_takes_a_number():
    (q, k, v, radius), _ = inputs()
    assert torch.equal(fourierformer.fourier_attention(q, k, v, 2.0), sinc_attention(q, k, v, radius))


def test_inside_a_compiled_model():
    tensors, doutput = inputs(queries=9)
    # backend "eager" traces and breaks the graph as the real compiler does, without a C++ compiler.
    model = torch.compile(
        lambda q, k, v, radius: 2 * sinc_attention(q * 1.0, k, v, radius, causal=True), backend="eager"
    )
    plain = run(lambda *a: 2 * sinc_attention(*a, causal=True), tensors, doutput)
    assert all(torch.allclose(a, b) for a, b in zip(run(model, tensors, doutput), plain, strict=True))
