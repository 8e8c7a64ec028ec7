"""Fourier (sinc-kernel) attention: one signature, several backends.

`sinc_attention` checks its inputs, chooses a backend, logs the choice and its reason once, and calls it. To add a
backend: write a function with the signature of `BACKENDS`, enter it there, and add its condition to `choose_backend`.
"""

import importlib.util
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from fourierformer.kernels.matmul_precision import uses_tf32
from fourierformer.kernels.sinc import compiled, library
from fourierformer.kernels.sinc.checks import check_disc, check_mask, check_numbers, check_shapes, one_dtype
from fourierformer.kernels.sinc.compiled import sinc_attention_compiled
from fourierformer.kernels.sinc.portable import sinc_attention_portable
from fourierformer.kernels.sinc.reference import sinc_attention_reference

log = logging.getLogger(__name__)

HAS_TRITON = importlib.util.find_spec("triton") is not None
TENSOR_MEMORY = (10, 11)  # major compute capabilities whose tensor cores leave products in a memory of their own


def sinc_attention_fused(*arguments: Tensor, power: int, eps: float, causal: bool, keep: Tensor | None) -> Tensor:
    """Call the function of this name in op.py, which is imported here because it needs Triton."""
    from fourierformer.kernels.sinc import op

    return op.sinc_attention_fused(*arguments, power=power, eps=eps, causal=causal, keep=keep)


# name -> f(q, k, v, radius, *, power, eps, causal, keep)
BACKENDS: dict[str, Callable[..., Tensor]] = {
    "fused": sinc_attention_fused,
    "compiled": sinc_attention_compiled,
    "portable": sinc_attention_portable,
    "reference": sinc_attention_reference,
}

_announced: set[tuple[str, str]] = set()


def check_backend(name: str) -> None:
    """Raise ValueError for a name that no backend has."""
    if name not in ("auto", *BACKENDS):
        raise ValueError(f"unknown Fourier attention backend {name!r}; available: auto, {', '.join(BACKENDS)}")


def choose_backend(
    q: Tensor, backend: str = "auto", *, power: int = 4, width: int = 0, masked: bool = False, disc: bool = False
) -> tuple[str, str]:
    """(name, reason) of the backend for a query tensor like q, `masked` with a mask of pairs or with dropout. `width`:
    coordinates of a head, of q or of v.

    ValueError for an unknown name, and for a backend that cannot run here.
    """
    check_backend(backend)
    if disc:
        obstacle = "it has neither attn_mask nor dropout" if masked else why_not_compiled(q, power)
        if obstacle or backend not in ("auto", "compiled"):
            why = obstacle or f"backend={backend!r} has none"
            raise ValueError(f"discs have one backend, 'compiled': {why}. attention=fourier_disc runs anywhere")
        return "compiled", "the only one with discs"
    if masked:
        if backend not in ("auto", "portable"):
            raise ValueError(
                f"Fourier attention backend {backend!r} has neither attn_mask nor dropout: take 'auto' or 'portable', "
                "or causal=True and keep=, which every backend has"
            )
        return "portable", "attn_mask or dropout"
    if backend in ("portable", "reference"):
        return backend, "chosen by name"
    best, why = backend, "chosen by name"
    if backend == "auto":  # on a CPU never fused: the interpreter is for tests
        on_cpu = q.device.type == "cpu"
        best, why = ("compiled", "built for this processor") if on_cpu else ("fused", "Triton on a GPU")
    obstacle = why_not_compiled(q, power) if best == "compiled" else why_not_fused(q, width)
    if not obstacle:
        return best, why
    if backend == "auto":
        return "portable", obstacle
    raise ValueError(
        f"Fourier attention backend {backend!r} cannot run here: {obstacle}; backend='auto' chooses one that can"
    )


def why_not_compiled(q: Tensor, power: int = 4) -> str | None:
    """The reason why the compiled CPU kernel cannot run for such a tensor; None if it can. Builds it where needed."""
    if q.device.type != "cpu":
        return f"it runs on a CPU, q is on '{q.device.type}'"
    return compiled.why_not(power, q.shape[-1], q.dtype) or library.why_unavailable()


def why_not_fused(q: Tensor, width: int = 0) -> str | None:
    """The reason why the Triton kernels cannot run for such tensors, with heads of `width`; None if they can."""
    if q.dtype == torch.float64:
        return "it computes in float32, q is float64"
    if q.device.type not in ("cuda", "cpu"):
        return f"Triton does not compile for device type '{q.device.type}'"
    if q.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "q is on the CPU, where Triton needs its slow interpreter (set TRITON_INTERPRET=1 before Python starts)"
    if not HAS_TRITON:
        return "triton is not installed"
    if q.is_cuda and _compute_capability_major(q.device) < 8:
        return "it needs an NVIDIA GPU of compute capability 8.0 (Ampere) or newer"
    if q.is_cuda and _compute_capability_major(q.device) in TENSOR_MEMORY and _triton_version() < (3, 8):
        return "Triton before 3.8 miscompiles it for compute capability 10.0; a newer PyTorch brings a newer Triton"
    if q.is_cuda and width > 128 and width > (widest := _widest(q)):
        return f"heads of {width} coordinates take more shared memory than this GPU has: at most {widest}"
    return None


def is_precise(dtype: torch.dtype) -> bool:
    """Whether to compute float32 products to full precision, by torch's setting. Half-precision inputs have lost the
    digits already."""
    return dtype == torch.float32 and not uses_tf32()


def _widest(q: Tensor) -> int:
    """The widest heads whose backward fits into the shared memory of a block (scripts/inspect_kernel.py --width)."""
    most = 128 if is_precise(q.dtype) else 256
    shared = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin
    return 2 * most if shared >= 160 * 1024 else most


def _refuse_transforms(*tensors: Tensor) -> None:
    """NotImplementedError for derivatives that torch would silently take to be 0, or refuse in words about itself."""
    if not torch.compiler.is_compiling():  # which cannot trace these questions; vmap may stand between
        tensors = tuple(map(_without_batches, tensors))
    if any(unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            "Fourier attention has no forward-mode derivative (torch.func.jvp, jacfwd): use reverse mode, "
            "torch.autograd.grad"
        )
    if not torch.compiler.is_compiling() and any(map(torch._C._functorch.is_gradtrackingtensor, tensors)):
        raise NotImplementedError(
            "Fourier attention has no derivative by torch.func (grad, vjp, jacrev): use torch.autograd.grad"
        )


def _without_batches(tensor: Tensor) -> Tensor:
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _compute_capability_major(device: torch.device) -> int:
    """0 for AMD. Without a cache: torch.compile traces these functions as constants, and warns of caches."""
    return torch.cuda.get_device_properties(device).major if torch.version.cuda else 0


def _triton_version() -> tuple[int, ...]:
    from triton import __version__  # imported only where it decides

    return tuple(int(part) for part in __version__.split(".")[:2])


def sinc_attention(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, *, power: int = 4, eps: float = 0.0, causal: bool = False,
    keep: Tensor | None = None, mask: Tensor | None = None, dropout: float = 0.0, disc: bool = False,
    backend: str = "auto",
) -> Tensor:  # fmt: skip
    """Fourier attention: q (B, H, N, D), k (B, H, M, D), v (B, H, M, Dv), radius of shape (), (H, 1), (1, D) or (H, D)
    -> (B, H, N, Dv).

    keep (B, M), bool: False for keys that no query may see (padding); their content has no influence, NaN included.
    mask: of pairs, broadcasts to (B, H, N, M); bool, True for pairs that take part, or float, added to the logarithms
    of the weights. dropout: the probability with which a normalised weight is left out.
    disc: factors 2 J1(x) / x, x the length of R (q - k) in the planes of coordinates 2m and 2m + 1, in place of sinc.
    First derivatives by all four tensors, in reverse mode. Half-precision inputs, and inputs under autocast, where q, k
    and v may differ in dtype, are computed in float32 and the result is cast back.
    """
    check_numbers(q, k, v, radius, power, eps)
    q, k, v = one_dtype(q, k, v)
    check_shapes(q, k, v, radius, keep)
    check_mask(q, k, mask, dropout)
    check_disc(q, disc)
    differentiated = (q, k, v, radius) if mask is None else (q, k, v, radius, mask)
    _refuse_transforms(*differentiated)
    masked = mask is not None or dropout > 0
    name, reason = choose_backend(
        q, backend, power=power, width=max(q.shape[-1], v.shape[-1]), masked=masked, disc=disc
    )
    if not torch.compiler.is_compiling() and (name, reason) not in _announced:
        _announced.add((name, reason))
        log.info("Fourier attention backend: %s (%s)", name, reason)
    if 0 in (*q.shape, *v.shape):  # no queries, no keys, or values of no width
        nothing = sum(t.flatten()[:0].sum() for t in differentiated)  # 0, and part of the graph
        return q.new_zeros(*q.shape[:3], v.shape[3]) + nothing
    options: dict[str, Any] = {"mask": mask, "dropout": dropout} if masked else {"disc": True} if disc else {}
    return BACKENDS[name](q, k, v, radius, power=power, eps=eps, causal=causal, keep=keep, **options)
