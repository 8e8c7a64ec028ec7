"""The compiled CPU kernel as a torch operator: tracing, compiling, exporting, mapping, counting, many threads."""

import math
import threading

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from fourierformer import attention
from fourierformer.errors import SetupError
from fourierformer.kernels.sinc import choose_backend, compiled, sinc_attention
from fourierformer.kernels.sinc.reference import sinc_attention_reference
from tests.helpers.sinc_cases import error, inputs, needs_compiled, run

pytestmark = needs_compiled
OPTIONS = {"power": 4, "eps": 1e-6, "causal": True}
SETTINGS = (None, *OPTIONS.values())


def leaves_of(tokens=5, heads=2, batch=2, width=4, value_width=3, dtype=torch.float32):
    (*qkv, _), doutput = inputs(batch, heads, queries=tokens, width=width, value_width=value_width)
    radius = torch.linspace(0.5, 1.5, heads * width, dtype=dtype).reshape(heads, width)
    return [*(t.to(dtype) for t in qkv), radius], doutput.to(dtype)


def layer(q, k, v, radius):
    return 2 * sinc_attention(q.sin(), k.sin(), v, radius.abs(), backend="compiled", **OPTIONS)


def assert_same(actual, expected):
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("left_out", [False, True])
def test_torch_accepts_the_operators(dtype, left_out):
    (q, k, v, radius), doutput = leaves_of(dtype=dtype)
    keep = torch.tensor([[True, False, True, True, True]] * 2) if left_out else None
    leaves = [t.clone().requires_grad_() for t in (q, k, v, radius.expand(2, 2, 4).contiguous())]
    operators = torch.ops.fourierformer
    torch.library.opcheck(operators.sinc_attention_cpu, (*leaves, keep, *OPTIONS.values()))
    given = [t.detach() for t in leaves]
    saved = (*given, keep, *operators.sinc_attention_cpu(*given, keep, *OPTIONS.values()))
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(
        operators.sinc_attention_cpu_backward, (doutput, *saved, *OPTIONS.values()), test_utils=checks
    )


def test_shapes_for_tracing_are_those_of_the_kernel():
    (q, k, v, radius), doutput = leaves_of()
    full = radius.expand(2, 2, 4)
    real = torch.ops.fourierformer.sinc_attention_cpu(q, k, v, full, *SETTINGS)
    fake = torch.ops.fourierformer.sinc_attention_cpu(*(t.to("meta") for t in (q, k, v, full)), *SETTINGS)
    saved = (q, k, v, full, None, *real)
    real += torch.ops.fourierformer.sinc_attention_cpu_backward(doutput, *saved, *OPTIONS.values())
    on_meta = [None if t is None else t.to("meta") for t in (doutput, *saved)]
    fake += torch.ops.fourierformer.sinc_attention_cpu_backward(*on_meta, *OPTIONS.values())
    for ours, exact in zip(fake, real, strict=True):
        assert (ours.shape, ours.dtype, ours.stride()) == (exact.shape, exact.dtype, exact.stride())


def test_compiles_without_a_break():
    torch.compiler.reset()
    leaves, doutput = leaves_of()
    function = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_same(run(function, leaves, doutput), run(layer, leaves, doutput))


def test_one_graph_for_all_lengths():
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for tokens in (5, 7, 12):
        leaves, doutput = leaves_of(tokens)
        assert_same(run(function, leaves, doutput), run(layer, leaves, doutput))
    assert sum("sinc_attention_cpu" in graph.code for graph in counter.graphs) == 1


class Module(nn.Module):
    def forward(self, q, k, v, radius):
        return layer(q, k, v, radius)


def test_exports_without_a_break():
    leaves, _ = leaves_of()
    exported = torch.export.export(Module(), tuple(leaves))
    torch.testing.assert_close(exported.module()(*leaves), layer(*leaves))


@pytest.mark.parametrize("mapped", [(0, 0, 0, None), (1, None, 2, 0)])
def test_vmap_equals_a_loop(mapped):
    """Values and gradients, whichever arguments are mapped, and over whichever dimension."""
    examples = [leaves_of(dtype=torch.float64)[0] for _ in range(3)]
    arguments = []
    for position, dim in enumerate(mapped):
        own = [example[position] * (1 + 0.1 * number) for number, example in enumerate(examples)]
        arguments.append(own[0] if dim is None else torch.stack(own, dim))

    leaves = [t.requires_grad_() for t in arguments]
    output = torch.vmap(layer, in_dims=mapped)(*leaves)
    single = []
    for number in range(3):
        single.append(
            layer(*(t if dim is None else t.select(dim, number) for t, dim in zip(leaves, mapped, strict=True)))
        )
    expected = torch.stack(single)
    torch.testing.assert_close(output, expected)
    doutput = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    gradients, exact = (torch.autograd.grad(y, leaves, doutput) for y in (output, expected))
    torch.testing.assert_close(gradients, exact)


def test_recomputed_activations_give_the_same_gradients():
    leaves, doutput = leaves_of()
    recomputed = run(lambda *a: checkpoint(layer, *a, use_reentrant=False), leaves, doutput)
    assert all(torch.equal(a, b) for a, b in zip(recomputed, run(layer, leaves, doutput), strict=True))


@pytest.mark.parametrize("backend", ["compiled", "portable", "reference"])
def test_a_second_derivative_is_refused_in_one_sentence(backend):
    leaves, _ = leaves_of(dtype=torch.float64)
    leaves = [t.requires_grad_() for t in leaves]
    first = torch.autograd.grad(
        sinc_attention(*leaves, backend=backend, **OPTIONS).sum(), leaves[0], create_graph=True
    )[0]
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        first.sum().backward()


def test_forward_mode_is_refused():
    (q, k, v, radius), _ = leaves_of()
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda q: sinc_attention(q, k, v, radius), (q,), (q,))


def test_derivatives_of_a_mapped_call_are_refused_in_the_same_words():
    (q, k, v, radius), _ = leaves_of()
    stacked = torch.stack([q, 2 * q])
    mapped = torch.vmap(lambda q: sinc_attention(q, k, v, radius))
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(mapped, (stacked,), (stacked,))
    with pytest.raises(NotImplementedError, match=r"by torch\.func"):
        torch.func.grad(lambda q: mapped(q).sum())(stacked)


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0)])
def test_the_operators_take_no_tokens(queries, keys):
    """An exported graph calls them without the question of `sinc_attention`."""
    operators = torch.ops.fourierformer
    q, k, v, radius = (
        torch.ones(2, 2, queries, 4),
        torch.ones(2, 2, keys, 4),
        torch.ones(2, 2, keys, 3),
        torch.ones(2, 2, 4),
    )
    given = (q, k, v, radius)
    output, norm = operators.sinc_attention_cpu(*given, *SETTINGS)
    assert torch.equal(output, torch.zeros(2, 2, queries, 3))
    gradients = operators.sinc_attention_cpu_backward(output, *given, None, output, norm, *OPTIONS.values())
    assert all(torch.equal(gradient, torch.zeros_like(t)) for gradient, t in zip(gradients, given, strict=True))
    masks = (None, torch.ones(2, 2, queries, keys, dtype=torch.bool), None)
    output, log_total = operators.sinc_attention_portable(*given, *masks, 4, 1e-6, False, 0.0)
    assert torch.equal(output, torch.zeros(2, 2, queries, 3))
    saved = (*given, *masks, output, log_total)
    gradients = operators.sinc_attention_portable_backward(output, *saved, 4, False, 0.0, False)
    assert all(torch.equal(gradient, torch.zeros_like(t)) for gradient, t in zip(gradients[:4], given, strict=True))


@pytest.mark.parametrize("number", [math.inf, 3e38, math.nan])
def test_later_values_reach_no_gradient_of_an_earlier_query(number):
    (q, k, v, radius), _ = leaves_of(tokens=20)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    sinc_attention(*leaves, radius, backend="compiled", **OPTIONS)[:, :, :8].mul(100).sum().backward()
    expected = leaves[0].grad[:, :, :8].clone()
    v[:, :, 9:] = number
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    output = sinc_attention(*leaves, radius, backend="compiled", **OPTIONS)
    (gradient,) = torch.autograd.grad(output[:, :, :8].mul(100).sum(), leaves[0])
    assert torch.equal(gradient[:, :, :8], expected)


@pytest.mark.parametrize(("dtype", "widest"), [(torch.float32, 2048), (torch.float64, 256)])
def test_heads_whose_exponents_do_not_fit_are_left_to_portable(dtype, widest):
    assert choose_backend(torch.zeros(1, 1, 2, widest, dtype=dtype))[0] == "compiled"
    assert choose_backend(torch.zeros(1, 1, 2, widest + 1, dtype=dtype))[0] == "portable"
    torch.manual_seed(0)
    q, k = (30 / 2**0.5 * torch.randn(1, 1, n, 4 * widest, dtype=dtype) for n in (2, 3))
    v = torch.randn(1, 1, 3, 2, dtype=dtype)
    assert sinc_attention(q, k, v, torch.ones(()), power=4, eps=0.0, causal=False).abs().min() > 0


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
def test_reverse_mode_of_torch_func_is_refused_and_vmap_is_not(transform):
    (q, k, v, radius), _ = leaves_of()
    for moved in range(4):

        def total(x, at=moved):
            arguments = [q, k, v, radius]
            arguments[at] = x
            return sinc_attention(*arguments).sum()

        with pytest.raises(NotImplementedError, match=r"by torch\.func .*: use torch\.autograd\.grad"):
            transform(total)((q, k, v, radius)[moved])
    stacked = torch.stack([q, 2 * q])
    for backend in ("auto", "reference"):
        mapped = torch.vmap(lambda q, name=backend: sinc_attention(q, k, v, radius, backend=name))(stacked)
        torch.testing.assert_close(mapped, torch.stack([sinc_attention(one, k, v, radius) for one in stacked]))


def test_operations_are_counted_per_pair():
    leaves, _ = leaves_of(tokens=5, heads=2, batch=1, width=4, value_width=3)
    leaves = [t.requires_grad_() for t in leaves]
    with FlopCounterMode(display=False) as counter:
        sinc_attention(*leaves, backend="compiled", **OPTIONS).sum().backward()
    counts = {str(op): count for op, count in counter.get_flop_counts()["Global"].items()}
    pairs = 2 * 5 * 5
    assert counts == {
        "fourierformer.sinc_attention_cpu": pairs * (18 * 4 + 2 * 3),
        "fourierformer.sinc_attention_cpu_backward": pairs * (40 * 4 + 4 * 3),
    }


@pytest.mark.parametrize("number_of_leaf", [0, 2, 3])
def test_only_leaves_that_require_a_gradient_get_one(number_of_leaf):
    leaves, doutput = leaves_of()
    _, *gradients = run(sinc_attention, leaves, doutput, backend="compiled", **OPTIONS)
    leaves[number_of_leaf].requires_grad_()
    sinc_attention(*leaves, backend="compiled", **OPTIONS).backward(doutput)
    assert [number for number, leaf in enumerate(leaves) if leaf.grad is not None] == [number_of_leaf]
    assert torch.equal(leaves[number_of_leaf].grad, gradients[number_of_leaf])


@pytest.mark.parametrize(
    ("radius", "offset", "which", "low", "high"),
    [
        (0.43, 0, 0, 0, 1e-6),
        (0.43, 1e3, 0, 0, 1e-5),
        (0.43, 1e4, 0, 1e-5, 1e-3),
        (1e-6, 0, 1, 0, 1e-4),
        (1e-8, 0, 1, 1e-4, 1e-2),
    ],
)
def test_what_an_offset_of_all_tokens_and_a_tiny_radius_cost(radius, offset, which, low, high):
    """The errors that the README states, of the output and of dq."""
    (q, k, v, scale), doutput = inputs(queries=48, width=16, radius=radius, scale=1.0)
    rounded = [(q + offset).float(), (k + offset).float(), v.float(), scale.float()]
    options = {"power": 4, "eps": 1e-6, "causal": False, "keep": None}
    truth = run(sinc_attention_reference, [t.double() for t in rounded], doutput, **options)
    ours = run(compiled.sinc_attention_compiled, rounded, doutput, torch.float32, **options)
    assert low <= error(ours[which], truth[which]) <= high


def test_exponents_that_do_not_fit_are_left_to_portable():
    q = torch.zeros(1, 1, 4, 64)
    assert choose_backend(q, power=1000)[0] == "compiled"
    name, reason = choose_backend(q, power=4000)
    assert name == "portable"
    assert "weights of power 4000 in 64 coordinates" in reason
    with pytest.raises(ValueError, match=r"'compiled' cannot run here: it cannot hold the exponents"):
        choose_backend(q, "compiled", power=4000)


def test_a_high_power_is_a_nearest_neighbour():
    """Its weights do not overflow, as 2^1000 would."""
    (q, k, v, radius), doutput = inputs(queries=12, width=6, radius=0.3)
    options = {"power": 1000, "eps": 0.0, "causal": False, "keep": None}
    truth = run(sinc_attention_reference, [q, k, v, radius], doutput, **options)
    results = run(compiled.sinc_attention_compiled, [q, k, v, radius], doutput, **options)
    assert all(error(ours, exact) < 1e-8 for ours, exact in zip(results, truth, strict=True))


def test_denormal_numbers_are_as_before_in_the_calling_thread():
    leaves, _ = leaves_of()
    sinc_attention(*leaves, backend="compiled")
    assert (torch.tensor(1e-40) * 0.5).item() > 0


def test_many_python_threads_at_once():
    leaves, doutput = leaves_of(tokens=40)
    expected = run(layer, leaves, doutput)
    results = [None] * 8

    def work(number):
        results[number] = run(layer, leaves, doutput)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for of_thread in results:
        assert all(torch.equal(a, b) for a, b in zip(of_thread, expected, strict=True))


def test_without_the_threads_of_openmp_it_starts_its_own(monkeypatch):
    leaves, doutput = leaves_of(tokens=40, heads=4)
    expected = run(layer, leaves, doutput)
    monkeypatch.setattr(compiled.library, "openmp_parallel", lambda: None)
    compiled._function.cache_clear()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        results = run(layer, leaves, doutput)
    finally:
        torch.set_num_threads(before)
        compiled._function.cache_clear()
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_as_an_attention_choice():
    torch.manual_seed(0)
    geometry = attention.Geometry(dim=8, heads=2, length=6, causal=True)
    x = torch.randn(1, 6, 8)
    ours = attention.build("fourier", geometry)
    assert ours.backend_name(torch.device("cpu")) == "compiled"
    portable = attention.build("fourier", geometry, backend="portable")
    portable.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x), portable(x), rtol=1e-4, atol=1e-5)
    with pytest.raises((SetupError, ValueError), match="available"):
        attention.build("fourier", geometry, backend="compild")(x)
