"""Checks of the arguments of Fourier attention, before any kernel runs. An error is one sentence."""

import functools
import math

import torch
from torch import Tensor


def one_dtype(*tensors: Tensor) -> tuple[Tensor, ...] | list[Tensor]:
    """The tensors; under autocast, where layers return different dtypes, in the widest of their dtypes."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    return [t.to(dtype) for t in tensors]


def check_tensors(**tensors: object) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")


def check_radius_is_number(radius: float) -> None:
    """Raise for a radius from which no tensor can be made."""
    if radius is None or isinstance(radius, str):
        raise TypeError(f"radius must be a number or a tensor, got {radius!r}")
    if not math.isfinite(radius):
        raise ValueError(f"radius must be a finite number, got {radius!r}")


def check_numbers(q: Tensor, k: Tensor, v: Tensor, radius: Tensor, power: int, eps: float) -> None:
    check_tensors(q=q, k=k, v=v, radius=radius)
    for name, tensor in (("q", q), ("k", k), ("v", v), ("radius", radius)):
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"q is on {q.device} but {name} is on {tensor.device}")
    check_power_and_eps(power, eps)


def check_power_and_eps(power: int, eps: float) -> None:
    if isinstance(power, bool) or not isinstance(power, int) or power < 2 or power % 2:
        raise ValueError(
            f"power must be an even integer >= 2, got {power!r}: sinc changes sign, and only an even power keeps every "
            "weight non-negative"
        )
    if isinstance(eps, str) or not (0 <= eps < math.inf):
        raise ValueError(f"eps must be a finite number >= 0, got {eps!r}: it is added to a sum of non-negative weights")


def check_shapes(q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None) -> None:
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
    if q.shape[3] == 0:
        raise ValueError(f"q and k must have at least one coordinate, got {shapes}")
    if keep is not None and (keep.dtype != torch.bool or keep.shape != (k.shape[0], k.shape[2])):
        raise ValueError(
            f"keep must be a bool tensor (batch, keys), got {keep.dtype} {tuple(keep.shape)} with {shapes}"
        )
    if keep is not None and keep.device != q.device:
        raise ValueError(f"q is on {q.device} but keep is on {keep.device}")
    heads, width = q.shape[1], q.shape[3]
    if tuple(radius.shape) not in {(), (heads, 1), (1, width), (heads, width)}:
        raise ValueError(
            f"radius must have shape (), ({heads}, 1) per head, (1, {width}) per coordinate or ({heads}, {width}), "
            f"got {tuple(radius.shape)}"
        )


def check_mask(q: Tensor, k: Tensor, mask: Tensor | None, dropout: float) -> None:
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout_p is a probability, from 0 to 1, got {dropout!r}")
    if mask is None:
        return
    pairs = (*q.shape[:3], k.shape[2])
    fits = mask.dim() <= 4 and all(size in (1, of) for size, of in zip(mask.shape[::-1], pairs[::-1], strict=False))
    if not fits or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(
            f"attn_mask must be bool or float and broadcast to (batch, heads, queries, keys) = {pairs}, got "
            f"{mask.dtype} {tuple(mask.shape)}"
        )
    if mask.device != q.device:
        raise ValueError(f"q is on {q.device} but attn_mask is on {mask.device}")


def check_disc(q: Tensor, disc: bool) -> None:
    if disc and q.shape[3] % 2:
        raise ValueError(f"discs take pairs of coordinates, and {q.shape[3]} is an odd number")


def repeat_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """k and v with as many heads as q: each of their heads serves a group of adjacent query heads."""
    if not q.dim() == k.dim() == v.dim() == 4:
        return k, v  # which `check_shapes` refuses: none of the dimensions need be heads
    heads, groups = q.shape[1], k.shape[1]
    if groups == 0 or heads % groups or v.shape[1] != groups:
        raise ValueError(
            f"enable_gqa=True: k and v must have the same number of heads, a divisor of q's {heads}, got {k.shape[1]} "
            f"and {v.shape[1]}"
        )
    return k.repeat_interleave(heads // groups, 1), v.repeat_interleave(heads // groups, 1)


def mask_of_keys(mask: Tensor, q: Tensor, k: Tensor) -> Tensor | None:
    """(B, M) where the mask is boolean and, by its shape, the same for all heads and queries of a row, as padding is;
    else None. Every backend leaves out keys, only one has masks of pairs."""
    if mask.dtype != torch.bool or not mask.dim() == q.dim() == k.dim() == 4:
        return None
    if mask.shape[0] not in (1, q.shape[0]) or mask.shape[1:] != (1, 1, k.shape[2]):
        return None
    return mask[:, 0, 0].expand(q.shape[0], -1)
