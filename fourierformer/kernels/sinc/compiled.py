"""The compiled CPU kernel as two torch operators: calls into the library, and shapes for tracing."""

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from fourierformer.kernels.sinc import library
from fourierformer.kernels.sinc.operators import count_operations, direct_operator, register_derivative, register_vmap

ARRAYS = ("q", "k", "v", "radius", "output", "doutput", "dq", "dk", "dv", "dradius")
NUMBERS = ("batch", "heads", "queries", "keys", "width", "value_width", "power", "causal", "disc", "threads")
WIDEST, WIDEST_DOUBLE = 2048, 256  # exponents of a weight add up over its coordinates; below -2^15 it counts as absent
LARGEST_EXPONENT = 2**30  # of a weight; a factor of 0 takes 2^16 from it (native/tiles.h), once per eight coordinates


class Array(ctypes.Structure):
    """As in native/call.h."""

    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "token"))]


class Call(ctypes.Structure):
    """As in native/call.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in NUMBERS),
        ("eps", ctypes.c_double),
        ("parallel", ctypes.c_void_p),
        *((name, Array) for name in ARRAYS),
        ("norm", ctypes.c_void_p),
        ("keep", ctypes.c_void_p),
    ]


@functools.cache
def _function(name: str) -> tuple[Callable[..., int], int | None]:
    function = getattr(library.load(), name)
    function.argtypes, function.restype = [ctypes.POINTER(Call)], ctypes.c_int
    return function, library.openmp_parallel()


def _call(
    which: str, norm: Tensor, keep: Tensor | None, power: int, eps: float, causal: bool, disc: bool, **tensors: Tensor
) -> None:  # fmt: skip
    """Run the pass `which`; the tensors have the names of ARRAYS."""
    q, v = tensors["q"], tensors["v"]
    function, parallel = _function(f"sinc_{which}_{'double' if q.dtype == torch.float64 else 'float'}")
    batch, heads, queries, width = q.shape
    threads = torch.get_num_threads()
    call = Call(batch, heads, queries, v.shape[2], width, v.shape[3], power, causal, disc, threads, eps, parallel)
    call.norm = norm.data_ptr()
    if keep is not None:
        keep = keep.contiguous()  # this reference keeps its memory alive
        call.keep = keep.data_ptr()
    for name, tensor in tensors.items():
        strides = [*tensor.stride()[:-1], 0]  # a radius has no tokens: token stride 0
        setattr(call, name, Array(tensor.data_ptr(), *strides[:3]))
    if function(ctypes.byref(call)):
        raise MemoryError("Fourier attention: no memory for the kernel's own arrays")


def _token_major(like: Tensor, width: int) -> Tensor:
    """An empty tensor (B, H, N, width) for `like` (B, H, N, K), in the memory layout (B, N, H, width), in which the
    model joins the heads without a copy."""
    batch, heads, tokens, _ = like.shape
    return like.new_empty(batch, tokens, heads, width).transpose(1, 2)


def _contiguous_rows(x: Tensor) -> Tensor:
    """x, copied unless the numbers of a token are adjacent in memory."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


@direct_operator("fourierformer::sinc_attention_cpu", "CPU")
def sinc_forward(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, power: int, eps: float, causal: bool,
    disc: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Forward pass: q, k, v as in `sinc_attention`, all float32 or all float64, radius (B, H, D), keep (B, M) ->
    output, and two numbers per query for the backward pass (B, H, N, 2)."""
    q, k, v, radius = map(_contiguous_rows, (q, k, v, radius))
    output = _token_major(q, v.shape[3])
    norm = q.new_empty(*q.shape[:3], 2)
    _call("forward", norm, keep, power, eps, causal, disc, q=q, k=k, v=v, radius=radius, output=output)
    return output, norm


@sinc_forward.register_fake
def _(q, k, v, radius, keep, power, eps, causal, disc=False):
    return _token_major(q, v.shape[3]), q.new_empty(*q.shape[:3], 2)


@direct_operator("fourierformer::sinc_attention_cpu_backward", "CPU")
def sinc_backward(
    doutput: Tensor, q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, output: Tensor, norm: Tensor,
    power: int, eps: float, causal: bool, disc: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and radius."""
    doutput, q, k, v, radius, output = map(_contiguous_rows, (doutput, q, k, v, radius, output))
    dq, dk, dv = (_token_major(t, t.shape[3]) for t in (q, k, v))
    dradius = radius.new_empty(radius.shape)
    if 0 in (*q.shape, k.shape[2]):  # in an exported graph: `sinc_attention` returns before
        return dq.zero_(), dk.zero_(), dv.zero_(), dradius.zero_()
    arrays = dict(zip(ARRAYS, (q, k, v, radius, output, doutput, dq, dk, dv, dradius), strict=True))
    _call("backward", norm.contiguous(), keep, power, eps, causal, disc, **arrays)
    return dq, dk, dv, dradius


@sinc_backward.register_fake
def _(doutput, q, k, v, radius, keep, output, norm, power, eps, causal, disc=False):
    return *(_token_major(t, t.shape[3]) for t in (q, k, v)), radius.new_empty(radius.shape)


register_derivative(sinc_forward, sinc_backward)
register_vmap(sinc_forward)
register_vmap(sinc_backward)
count_operations(torch.ops.fourierformer.sinc_attention_cpu, per_coordinate=18, per_value=2)
# 40 with the two sums of slopes; the values: dout v^T and dv
count_operations(torch.ops.fourierformer.sinc_attention_cpu_backward, per_coordinate=40, per_value=4, first=1)


def why_not(power: int, width: int, dtype: torch.dtype = torch.float32) -> str | None:
    """The reason why the kernel cannot compute with this power and width; None if it can."""
    widest = WIDEST_DOUBLE if dtype == torch.float64 else WIDEST
    fits = power * 2**16 * (width + 7) // 8 < LARGEST_EXPONENT and width <= widest
    return None if fits else f"it cannot hold the exponents of weights of power {power} in {width} coordinates"


def sinc_attention_compiled(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, *, power: int, eps: float, causal: bool,
    keep: Tensor | None = None, disc: bool = False,
) -> Tensor:  # fmt: skip
    """Fourier attention by the compiled kernel, with the contract of the reference, and `disc` of `sinc_attention`."""
    batch, heads, _, width = q.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = radius.to(dtype).expand(heads, width).expand(batch, heads, width)
    output, _ = sinc_forward(q.to(dtype), k.to(dtype), v.to(dtype), scale, keep, power, eps, causal, disc)
    return output.to(q.dtype)
