"""The fused kernels as torch operators: tracing, compiling, checkpointing, data parallel training, counting."""

import functools
import importlib

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from fourierformer import attention
from fourierformer.kernels.sinc import sinc_attention
from tests.helpers.sinc_cases import DEVICE, inputs, matmul_precision, needs_fused, quiet_interpreter, run

pytestmark = [needs_fused, quiet_interpreter]
OPTIONS = {"power": 4, "eps": 1e-6, "causal": True}
KEEP = torch.tensor([[False, True, True, False, True]])
LEAVES = ("q", "k", "v", "radius")


@pytest.fixture
def operators():
    """Importing op.py registers them; `sinc_attention` does so when it is first needed."""
    importlib.import_module("fourierformer.kernels.sinc.op")
    return torch.ops.fourierformer


def tensors_of(tokens=5, heads=1, width=4, value_width=4):
    """q, k, v, radius (H, D), output gradient: float32, where the fused backend is tested."""
    (*qkv, radius), doutput = inputs(heads=heads, queries=tokens, width=width, value_width=value_width, radius=1.0)
    tensors = (*qkv, radius.expand(heads, width).contiguous(), doutput)
    return [t.to(DEVICE, torch.float32) for t in tensors]


def layer(q, k, v, radius):
    """Fused attention between operations that a compiler may touch."""
    return 2 * sinc_attention(q.sin(), k.sin(), v, radius.abs(), backend="fused", **OPTIONS)


def results(function, tokens=5):
    *leaves, doutput = tensors_of(tokens)
    return run(function, leaves, doutput, device=DEVICE)


@functools.cache  # the interpreter takes a second
def plain():
    return results(layer)


def assert_same(actual, expected):
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.full("opcheck traces every operator")
@pytest.mark.parametrize("left_out", [False, True])
def test_torch_accepts_the_operators(operators, left_out):
    q, k, v, radius, doutput = tensors_of()
    leaves = [t.clone().requires_grad_() for t in (q, k, v, radius)]
    settings, keep = tuple(OPTIONS.values()), KEEP.to(DEVICE) if left_out else None
    torch.library.opcheck(operators.sinc_attention, (*leaves, keep, *settings))
    saved = (q, k, v, radius, keep, *operators.sinc_attention(q, k, v, radius, keep, *settings))
    torch.library.opcheck(operators.sinc_attention_backward, (doutput, *saved, *settings))


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.full("traces once more")), torch.bfloat16]
)
def test_shapes_for_tracing_are_those_of_the_kernels(operators, dtype):
    (*qkv, radius), doutput = inputs(1, 2, queries=3, keys=5, width=4, value_width=7, radius=torch.ones(2, 4))
    tensors = [t.transpose(1, 2).contiguous().transpose(1, 2).to(DEVICE, dtype) for t in (*qkv, doutput)]
    q, k, v, doutput, radius = *tensors, radius.to(DEVICE, torch.float32)
    keep = KEEP.to(DEVICE)
    saved = (q, k, v, radius, keep, *operators.sinc_attention(q, k, v, radius, keep, *OPTIONS.values()))
    for operator, arguments in (
        (operators.sinc_attention, saved[:5]),
        (operators.sinc_attention_backward, (doutput, *saved)),
    ):
        traced = operator(*(t.to("meta") for t in arguments), *OPTIONS.values())
        for fake, real in zip(traced, operator(*arguments, *OPTIONS.values()), strict=True):
            assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


def test_compiles_without_a_break():
    torch.compiler.reset()
    assert_same(results(torch.compile(layer, fullgraph=True, backend="aot_eager")), plain())


@pytest.mark.full("compiles for several lengths")
def test_one_graph_for_all_lengths(operators):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for tokens in (5, 7, 12):
        assert_same(results(compiled, tokens), results(layer, tokens))
    assert sum("sinc_attention" in graph.code for graph in counter.graphs) == 1


@pytest.mark.full("tests/kernels/test_sinc_compiled.py and tests/cli/test_distributed.py have it of the CPU kernel")
def test_recomputed_activations_give_the_same_gradients():
    recomputed = results(lambda *leaves: checkpoint(layer, *leaves, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(recomputed, plain(), strict=True))


def fused_layer(tokens=6, heads=2):
    torch.manual_seed(0)
    geometry = attention.Geometry(dim=8, heads=heads, length=tokens, causal=True)
    x = torch.randn(1, tokens, 8).to(DEVICE)
    return attention.build("fourier", geometry, backend="fused").to(DEVICE), x


def test_as_an_attention_choice():
    fused, x = fused_layer()
    assert fused.backend_name(torch.device(DEVICE)) == "fused"
    portable = attention.build("fourier", fused.geometry, backend="portable").to(DEVICE)
    portable.load_state_dict(fused.state_dict())
    with matmul_precision("highest"):  # whatever a training in this process has chosen
        torch.testing.assert_close(fused(x), portable(x), rtol=1e-4, atol=1e-5)


@pytest.fixture
def process_group(tmp_path):
    """Of this process alone."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.full("tests/kernels/test_sinc_compiled.py and tests/cli/test_distributed.py have it of the CPU kernel")
def test_data_parallel_training_sees_its_gradients(process_group):
    def gradients(wrap):
        module, x = fused_layer(heads=1)
        wrap(module)(x).square().sum().backward()
        return {name: p.grad for name, p in module.named_parameters()}

    alone, together = gradients(lambda module: module), gradients(nn.parallel.DistributedDataParallel)
    assert all(torch.equal(together[name], gradient) for name, gradient in alone.items())
    assert "radius" in alone


def test_operations_are_counted_per_pair(operators):
    q, k, v, radius, _ = tensors_of(tokens=5, width=4, value_width=3)
    leaves = [t.requires_grad_() for t in (q, k, v, radius)]
    with FlopCounterMode(display=False) as counter:
        sinc_attention(*leaves, backend="fused", **OPTIONS).sum().backward()
    counts = {str(op): count for op, count in counter.get_flop_counts()["Global"].items()}
    # A product of 16 features per pair and coordinate is 2 * 16 operations; one with the values 2 per value coordinate.
    pairs, features, values = 5 * 5, 2 * 16 * 4, 2 * 3
    assert counts == {
        "fourierformer.sinc_attention": pairs * (features + values),
        # the factors twice and the slopes; dout v and dv
        "fourierformer.sinc_attention_backward": pairs * (3 * features + 2 * values),
    }


def test_the_normaliser_has_no_gradient(operators):
    q, k, v, radius, _ = tensors_of()
    leaves = [t.requires_grad_() for t in (q, k, v, radius)]
    output, lost, norm, tier = operators.sinc_attention(*leaves, None, *OPTIONS.values())
    assert output.requires_grad
    assert not lost.requires_grad
    assert not norm.requires_grad
    assert not tier.requires_grad


def test_only_leaves_that_require_a_gradient_get_one():
    *leaves, doutput = tensors_of()
    _, *gradients = run(sinc_attention, leaves, doutput, device=DEVICE, backend="fused", **OPTIONS)
    for chosen in ("v", "radius"):
        named = dict(zip(LEAVES, (leaf.clone().requires_grad_(False) for leaf in leaves), strict=True))
        named[chosen].requires_grad_()
        sinc_attention(**named, backend="fused", **OPTIONS).backward(doutput)
        assert [name for name in LEAVES if named[name].grad is not None] == [chosen]
        assert torch.equal(named[chosen].grad.cpu(), gradients[LEAVES.index(chosen)])


def test_nothing_is_kept_without_gradients():
    q, k, v, radius, _ = tensors_of()
    with torch.no_grad():
        assert not sinc_attention(q, k, v, radius.requires_grad_(), backend="fused", **OPTIONS).requires_grad


def test_forward_mode_is_refused():
    q, k, v, radius, _ = tensors_of()
    for moved in range(4):

        def function(x, at=moved):
            arguments = [q, k, v, radius]
            arguments[at] = x
            return sinc_attention(*arguments, backend="fused", **OPTIONS)

        point = (q, k, v, radius)[moved]
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            torch.func.jvp(function, (point,), (torch.ones_like(point),))


def test_second_derivatives_are_refused():
    *leaves, doutput = tensors_of()
    leaves = [t.requires_grad_() for t in leaves]
    output = sinc_attention(*leaves, backend="fused", **OPTIONS)
    gradients = torch.autograd.grad(output, leaves, doutput, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        gradients[0].sum().backward()


def test_the_backward_fills_no_tensor_with_zeros():
    """For results without a gradient of their own, that is a launch each on a GPU."""
    *leaves, doutput = tensors_of()
    leaves = [t.requires_grad_() for t in leaves]
    output = sinc_attention(*leaves, backend="fused", **OPTIONS)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.autograd.grad(output, leaves, doutput)
    names = {event.key for event in profile.key_averages()}
    assert "fourierformer::sinc_attention_backward" in names
    assert not names & {"aten::zeros", "aten::zero_"}


def test_an_output_whose_gradient_is_undefined_gives_none():
    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, _):
            return None

    *leaves, _ = tensors_of()
    leaves = [t.requires_grad_() for t in leaves]
    loss = Undefined.apply(sinc_attention(*leaves, backend="fused", **OPTIONS)).sum()
    assert torch.autograd.grad(loss, leaves, allow_unused=True) == (None,) * 4


class Recorded:
    """A kernel as Triton's: called with its grid in brackets, it returns what was compiled, here a list of calls."""

    arg_names = ("X", "n", "SECOND", "FIRST")

    def __init__(self):
        self.looked_up, self.compiled = [], []

    def __getitem__(self, grid):
        class Compiled:
            def __getitem__(_, grid):
                return lambda *arguments: self.compiled.append((grid, arguments))

        def look_up(*arguments, **settings):
            self.looked_up.append((grid, arguments, settings))
            return Compiled()

        return look_up


def test_a_launch_looks_its_compiled_kernel_up_once():
    """Later calls go to it directly: with the constants, too, in the order of the kernel's parameters."""
    kernel = Recorded()
    launch = importlib.import_module("fourierformer.kernels.sinc.tiles").Launch(
        kernel, 7, [5], {"num_warps": 4, "FIRST": 1, "SECOND": 2}
    )
    for x in "abc":
        launch(x)
    assert kernel.looked_up == [((7, 1, 1), ("a", 5), {"num_warps": 4, "FIRST": 1, "SECOND": 2})]
    assert kernel.compiled == [((7, 1, 1), (x, 5, 2, 1)) for x in "bc"]


@pytest.mark.skipif(DEVICE == "cuda", reason="replaces the kernels by the interpreter's")
def test_every_fact_that_a_compiled_kernel_depends_on_has_its_own_plan(monkeypatch):
    interpreter = importlib.import_module("triton.runtime.interpreter")
    op = importlib.import_module("fourierformer.kernels.sinc.op")
    monkeypatch.setattr(interpreter.InterpretedFunction, "run", lambda *arguments, **settings: None)
    plans = [op.forward_plan, op.backward_plan]

    def made(change=lambda tensors: tensors, precision="highest", keep=None, dtype=torch.float32, **changed):
        """Forward and backward plans that a call makes."""
        before = [plan.cache_info().misses for plan in plans]
        tensors = [t.detach().requires_grad_() for t in change([t.to(dtype) for t in tensors_of()[:3]])]
        with matmul_precision(precision):
            radius = torch.ones(1, 4)
            output = sinc_attention(*tensors, radius, backend="fused", keep=keep, **OPTIONS | changed)
            torch.autograd.grad(output, tensors, torch.ones_like(output))
        return [plan.cache_info().misses - old for plan, old in zip(plans, before, strict=True)]

    def misaligned(tensors):
        numbers = torch.zeros(tensors[0].numel() + 1)
        return [numbers[1:].view_as(tensors[0]), *tensors[1:]]

    changes = [
        {},
        {"dtype": torch.bfloat16},
        {"precision": "high"},
        {"keep": KEEP},
        {"eps": 0.0},
        {"power": 2},
        {"causal": False},
        {"change": misaligned},
        {"change": lambda tensors: [t[:, :, :3] for t in tensors]},
        {"change": lambda tensors: [t.mT.contiguous().mT for t in tensors]},
    ]
    for plan in plans:
        plan.cache_clear()
    for change in changes:
        assert made(**change) == [1, 1], change
        assert made(**change) == [0, 0], change
