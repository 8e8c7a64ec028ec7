"""Inputs and comparisons shared by the kernel tests."""

import contextlib
import functools
import importlib
import math

import numpy as np
import pytest
import torch

from benchmarks.contestants import FEATURES_IN_FLOAT16
from fourierformer.kernels.sinc import BACKENDS, sinc_attention, why_not_compiled, why_not_fused
from fourierformer.kernels.sinc.reference import sinc_attention_reference

NAMES = ("output", "dq", "dk", "dv", "dradius")
PRECISIONS = ("highest", "high")  # of torch.set_float32_matmul_precision
NATIVE = torch.cuda.is_available()  # else the fused kernels run in Triton's interpreter (tests/conftest.py)
DEVICE = "cuda" if NATIVE else "cpu"  # where the fused backend is tested


@functools.cache
def fused_obstacle() -> str | None:
    """Why the fused backend cannot be tested here; None if it can."""
    obstacle = why_not_fused(torch.empty(0, device=DEVICE))
    if obstacle or NATIVE:
        return obstacle
    import triton

    @triton.jit
    def loop(count):
        for _ in range(count):
            pass

    try:
        loop[(1,)](2)
    except triton.runtime.errors.InterpreterError as problem:
        return f"the interpreter of triton {triton.__version__} cannot loop with numpy {np.__version__}: {problem}"
    return None


needs_fused = pytest.mark.skipif(fused_obstacle() is not None, reason=str(fused_obstacle()))
# its numpy warns where a GPU goes on with infinity, and of how an older triton uses it
quiet_interpreter = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton", "ignore::DeprecationWarning:triton")

_obstacle = why_not_compiled(torch.empty(0))
needs_compiled = pytest.mark.skipif(_obstacle is not None, reason=str(_obstacle))
CPU_BACKENDS = [pytest.param("compiled", marks=needs_compiled), "portable"]
# the interpreter takes seconds for what the fast tier has of it in test_sinc_fused.py
SLOW = [] if NATIVE else [pytest.mark.full("takes Triton's interpreter seconds")]
MARKS = {"fused": [needs_fused, quiet_interpreter, *SLOW], "compiled": [needs_compiled]}
EVERY_BACKEND = [pytest.param(name, marks=MARKS.get(name, ())) for name in BACKENDS]


def device_of(backend):
    return DEVICE if backend == "fused" else "cpu"


def inputs(batch=1, heads=2, queries=33, keys=None, width=16, value_width=None, radius=2.0, scale=0.5, seed=0):
    """q, k, v, radius and an output gradient, float64. `radius` is a number or a tensor of any accepted shape."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tokens, last):
        return torch.randn(batch, heads, tokens, last, generator=generator, dtype=torch.float64)

    keys, value_width = keys or queries, value_width or width
    radius = torch.as_tensor(radius, dtype=torch.float64)
    tensors = [scale * normal(queries, width), scale * normal(keys, width), normal(keys, value_width), radius]
    return tensors, normal(queries, value_width)


def run(function, tensors, doutput, dtype=None, device="cpu", **options):
    """Output and the four gradients of `function`, computed in `dtype` on `device`."""
    leaves = [t.detach().to(device, dtype or t.dtype).requires_grad_() for t in tensors]
    output = function(*leaves, **options)
    output.backward(doutput.to(output))
    return [output.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)]


def error(actual, truth):
    """Relative error in the Euclidean norm."""
    return ((actual.double() - truth).norm() / truth.norm().clamp_min(1e-300)).item()


def assert_float32_class(results, direct, truth):
    """The accuracy rule: at most twice the error of the printed formula in float32, or 1e-4, whichever is larger."""
    for name, ours, theirs, exact in zip(NAMES, results, direct, truth, strict=True):
        assert ours.isfinite().all(), name
        if exact.norm() < 1e-12:  # 0 but for rounding: one key alone has the weight 1 whatever it is
            assert ours.norm() < 1e-4, name
        else:
            assert error(ours, exact) <= max(1e-4, 2 * error(theirs, exact)), name


@contextlib.contextmanager
def matmul_precision(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def run_fused(tensors, doutput, precision="highest", dtype=torch.float32, power=4, eps=0.0, causal=False, keep=None):
    """As `run`, for the fused backend on the device it is tested on."""
    with matmul_precision(precision):
        keep = None if keep is None else keep.to(DEVICE)
        options = {"power": power, "eps": eps, "causal": causal, "keep": keep, "backend": "fused"}
        return run(sinc_attention, tensors, doutput, dtype, DEVICE, **options)


def allowed(tensors, doutput, precision, **options):
    """The error that the accuracy rule allows: as for float32, and below "highest" what rounding the inputs costs.

    That is the error of the formula in float64 for q, k, v and output gradient rounded to bfloat16; the largest of four
    such roundings, of other multiples, because on a few tokens the errors of one may happen to cancel. With a small
    radius the features' errors, which do not depend on it, may be larger.
    """
    truth = run(sinc_attention_reference, tensors, doutput, **options)
    bounds = [[1e-4] * 5]
    single = run(sinc_attention_reference, tensors, doutput, torch.float32, **options)
    bounds.append([2 * error(s, t) for s, t in zip(single, truth, strict=True)])
    for multiple in (1.0, 1.2, 1.4, 1.7) if precision != "highest" else ():
        *qkv, dout = [(t * multiple).bfloat16().double() / multiple for t in (*tensors[:3], doutput)]
        rough = run(sinc_attention_reference, [*qkv, tensors[3]], dout, **options)
        bounds.append([error(r, t) for r, t in zip(rough, truth, strict=True)])
    if precision != "highest":
        bounds.append([FEATURES_IN_FLOAT16 * math.sqrt(tensors[0].shape[3])] * 5)
    return [max(column) for column in zip(*bounds, strict=True)]


def assert_rule(
    results, tensors, doutput, precision="highest", dtype=torch.float32, power=4, eps=0.0, causal=False, keep=None
):
    """The accuracy rule for the results of `run_fused`, one radius per coordinate. Half precision rounds as well."""
    options = {"power": power, "eps": eps, "causal": causal, "keep": keep}
    *qkv, radius, doutput = [t.float().double() for t in (*tensors, doutput)]
    full = radius.expand(qkv[0].shape[1], qkv[0].shape[3]).contiguous()
    bounds = allowed([*qkv, full], doutput, precision, **options)
    if dtype != torch.float32:
        *qkv, full, doutput = [t.to(dtype).double() for t in (*qkv, full, doutput)]
        bounds = [bound + torch.finfo(dtype).eps / 2 for bound in bounds]
    truth = run(sinc_attention_reference, [*qkv, full], doutput, **options)
    # A sum of n coordinates' gradients may cancel; its error is at most sqrt(n) times that of the gradients' norm.
    bounds[4] *= math.sqrt(full.numel() / radius.numel())
    for name, ours, exact, bound in zip(NAMES, results, truth, bounds, strict=True):
        assert ours.isfinite().all(), name
        distance = (ours.double() - exact.sum_to_size(ours.shape)).norm()
        assert distance <= bound * exact.norm(), f"{name}: error {distance / exact.norm():.2e}, allowed {bound:.2e}"


def check_fused(tensors, doutput, **options):
    assert_rule(run_fused(tensors, doutput, **options), tensors, doutput, **options)


def take_passes(count, monkeypatch):
    """Make the backward of the fused kernel take so many passes over the pairs."""
    tiles = importlib.import_module("fourierformer.kernels.sinc.tiles")  # needs Triton
    monkeypatch.setattr(tiles, "ONE_PASS_KEYS", math.inf if count == 1 else 0)
