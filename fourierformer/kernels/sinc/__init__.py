"""Fourier (sinc-kernel) attention: one signature, several backends.

`sinc_attention` checks its inputs, picks a backend, says once which one and why, and calls it. To add a backend: write
a function with the keyword signature of the ones below, put it into `BACKENDS`, and say in `choose_backend` when "auto"
should prefer it.
"""

import logging
import math
from collections.abc import Callable

from torch import Tensor

from fourierformer.kernels.sinc.portable import sinc_attention_portable
from fourierformer.kernels.sinc.reference import sinc_attention_reference

log = logging.getLogger(__name__)

# name -> f(q, k, v, radius, *, power, eps, causal)
BACKENDS: dict[str, Callable[..., Tensor]] = {
    "portable": sinc_attention_portable,
    "reference": sinc_attention_reference,
}

_announced: set[tuple[str, str]] = set()


def choose_backend(q: Tensor, backend: str = "auto") -> tuple[str, str]:
    """(name, reason) of the backend that would serve a query tensor like this one. ValueError for an unknown name."""
    if backend == "auto":
        return "portable", f"the only fast backend for device type '{q.device.type}'"
    if backend not in BACKENDS:
        raise ValueError(f"unknown Fourier attention backend {backend!r}; available: auto, {', '.join(BACKENDS)}")
    return backend, "asked for by name"


def sinc_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    radius: Tensor,
    *,
    power: int = 4,
    eps: float = 0.0,
    causal: bool = False,
    backend: str = "auto",
) -> Tensor:
    """q (B, H, N, D), k (B, H, M, D), v (B, H, M, Dv), radius of shape (), (H, 1), (1, D) or (H, D) -> (B, H, N, Dv).

    Differentiable in all four tensors. Half-precision inputs are computed in float32 and the result is cast back.
    """
    _check(q, k, v, radius, power, eps)
    name, reason = choose_backend(q, backend)
    if (name, reason) not in _announced:
        _announced.add((name, reason))
        log.info("Fourier attention backend: %s (%s)", name, reason)
    return BACKENDS[name](q, k, v, radius, power=power, eps=eps, causal=causal)


def _check(q: Tensor, k: Tensor, v: Tensor, radius: Tensor, power: int, eps: float) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v), ("radius", radius)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"q is on {q.device} but {name} is on {tensor.device}")
    if isinstance(power, bool) or not isinstance(power, int) or power < 2 or power % 2:
        raise ValueError(
            f"power must be an even integer >= 2, got {power!r}: sinc changes sign, and only an even power keeps every "
            "weight non-negative"
        )
    if not (0 <= eps < math.inf):
        raise ValueError(f"eps must be a finite number >= 0, got {eps!r}: it is added to a sum of non-negative weights")
    _check_shapes(q, k, v, radius)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, radius: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"q, k, v must be (batch, heads, tokens, width), got {shapes}")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.shape[:2] == k.shape[:2] == v.shape[:2]:
        raise ValueError(f"q, k, v must agree in batch and heads, got {shapes}")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must have the same width per head, got {shapes}")
    if k.shape[2] != v.shape[2]:
        raise ValueError(f"k and v must have the same number of tokens, got {shapes}")
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        raise ValueError(f"q, k, v must not be empty, got {shapes}")
    heads, width = q.shape[1], q.shape[3]
    if tuple(radius.shape) not in {(), (heads, 1), (1, width), (heads, width)}:
        raise ValueError(
            f"radius must have shape (), ({heads}, 1) per head, (1, {width}) per coordinate or ({heads}, {width}), "
            f"got {tuple(radius.shape)}"
        )
