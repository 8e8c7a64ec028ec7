"""Switches that a model sets for all of its attention layers, whichever mechanism they have.

`Attention` makes their modules and applies them around `mix`: `qk_norm`, then `rotary_base` to queries and keys, `gate`
to the output, `value_residual` to the mixed values. At their defaults a layer has no such module and computes as
without them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

QKNormKind = Literal["none", "l2", "rms", "cosine"]
Gate = Literal["none", "head", "element"]

SMALLEST_NORM = 1e-6  # shorter vectors are divided by it: so near to 0 they have no useful direction
FIRST_SHARPNESS, LARGEST_SHARPNESS = 10.0, 100.0


@dataclass
class Carry:
    """Values of one layer for the layers above it, in one forward pass of a model: it makes a new object for every pass
    and gives it to every layer in turn. An argument, because an attribute of a module would break compilation by layer
    and copies of a model in several threads."""

    first_values: Tensor | None = None  # (B, H, M, D) of the first layer, with value_residual
    values_below: Tensor | None = None  # of the layer before, for mechanisms with `reads_below`
    scores_below: Tensor | None = None  # likewise, its logits (B, H, N, M)


def of_vectors(x: Tensor, width: int, function: Callable[[Tensor], Tensor], most: int | None = None) -> Tensor:
    """`function` of the first D = `width` coordinates of x (B, H, N, K). Where K > D, x holds more vectors, to which it
    is applied too, up to `most`, and numbers that are no vector (K modulo D of them, at the end)."""
    if x.shape[-1] == width:
        return function(x)
    parts = list(x.split(width, dim=-1))
    for i in range(min(x.shape[-1] // width, most or len(parts))):
        parts[i] = function(parts[i])
    return torch.cat(parts, dim=-1)


def rotated(x: Tensor, first: int, base: float) -> Tensor:
    """Vectors (B, H, N, D) at the positions p = first, first + 1, ...: coordinates 2m and 2m + 1 are rotated by the
    angle p base^(-2m / D). Rotations of queries and keys by their positions change dot products and distances by the
    difference of positions alone (Su et al. 2021, arXiv 2104.09864)."""
    tokens, width = x.shape[-2:]
    with torch.autocast(x.device.type, enabled=False):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        position = torch.arange(first, first + tokens, device=x.device, dtype=wide.dtype)
        angle = position[:, None] * base ** (torch.arange(0, width, 2, device=x.device, dtype=wide.dtype) / -width)
        cos, sin = angle.cos(), angle.sin()
        a, b = wide[..., ::2], wide[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)


class QKNorm(nn.Module):
    """Queries and keys of a length that does not depend on the weights, so that logits and distances are bounded.

    l2: x / |x| (Henry et al. 2020, arXiv 2010.04245, without their learned scale: logits of dot products then lie in
    +- 1/sqrt(D), and softmax stays nearly uniform). rms: x / sqrt(mean(x^2) + 1e-6), times a gain that is learned per
    coordinate, one for queries and one for keys (Dehghani et al. 2023, arXiv 2302.05442). cosine: l2, times
    sqrt(t sqrt(D)) for queries and keys, so that q.k / sqrt(D) = t cos(q, k), with t learned per head, 10 at first and
    at most 100 (Liu et al. 2022, arXiv 2111.09883). Of keys and queries of equal length the Gaussian kernel is
    proportional to the exponential of the dot product: with cosine, and rms at a gain of 1, `gaussian` is `softmax`.
    """

    def __init__(self, kind: QKNormKind, heads: int, width: int, queries: int = 1):
        super().__init__()
        self.kind, self.width, self.queries = kind, width, queries
        if kind == "rms":
            self.query_gain, self.key_gain = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        elif kind == "cosine":
            self.log_sharpness = nn.Parameter(torch.full((heads,), math.log(FIRST_SHARPNESS)))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, D) and k (B, H, M, D), normalised. Wider k have several keys; what follows the D coordinates of
        each of the `queries` is none."""
        of_q, of_k = (self.query_gain, self.key_gain) if self.kind == "rms" else (None, None)
        q = of_vectors(q, self.width, lambda query: self._normed(query, of_q), most=self.queries)
        return q, of_vectors(k, self.width, lambda key: self._normed(key, of_k))

    def _normed(self, x: Tensor, gain: Tensor | None) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            if gain is not None:
                return F.rms_norm(wide, (self.width,), gain.to(wide.dtype), eps=1e-6).to(x.dtype)
            wide = F.normalize(wide, dim=-1, eps=SMALLEST_NORM)
            if self.kind == "cosine":
                sharpness = self.log_sharpness.to(wide.dtype).clamp_max(math.log(LARGEST_SHARPNESS)).exp()
                wide = wide * (sharpness * math.sqrt(self.width)).sqrt()[:, None, None]
            return wide.to(x.dtype)

    def extra_repr(self) -> str:
        return self.kind
