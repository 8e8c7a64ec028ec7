"""Switches that a model sets for all of its attention layers, whichever mechanism they have.

`Attention` makes their modules and applies them around `mix`: `qk_norm` to queries and keys, `gate` to the output. At
"none" a layer has neither module and computes as without them.
"""

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.errors import SetupError

QKNormKind = Literal["none", "l2", "rms", "cosine"]
Gate = Literal["none", "head", "element"]

SMALLEST_NORM = 1e-6  # shorter vectors are divided by it
FIRST_SHARPNESS, LARGEST_SHARPNESS = 10.0, 100.0


def check_switches(geometry: Any) -> None:
    """SetupError for a value that a switch of this Geometry cannot have."""
    for switch, kind in (("qk_norm", QKNormKind), ("gate", Gate)):
        if (value := getattr(geometry, switch)) not in get_args(kind):
            raise SetupError(f"model.{switch}={value!r}: expected {' or '.join(map(repr, get_args(kind)))}")


class QKNorm(nn.Module):
    """Queries and keys of a length that does not depend on the weights, so that logits and distances are bounded.

    l2: x / |x| (Henry et al. 2020, arXiv 2010.04245). rms: x / sqrt(mean(x^2) + 1e-6), times a gain that is learned per
    coordinate, one for queries and one for keys (Dehghani et al. 2023, arXiv 2302.05442). cosine: l2, times
    sqrt(t sqrt(D)) for queries and keys, so that q.k / sqrt(D) = t cos(q, k), with t learned per head, 10 at first and
    at most 100 (Liu et al. 2022, arXiv 2111.09883). Of keys and queries of equal length the Gaussian kernel is
    proportional to the exponential of the dot product: with cosine, and rms at a gain of 1, `gaussian` is `softmax`.
    """

    def __init__(self, kind: QKNormKind, heads: int, width: int):
        super().__init__()
        self.kind, self.width = kind, width
        if kind == "rms":
            self.query_gain, self.key_gain = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        elif kind == "cosine":
            self.log_sharpness = nn.Parameter(torch.full((heads,), math.log(FIRST_SHARPNESS)))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, D) and k (B, H, M, D), normalised. Of wider ones the first D coordinates of q, and the whole
        multiples of D of k, which then has several keys; the others are unchanged."""
        of_q, of_k = (self.query_gain, self.key_gain) if self.kind == "rms" else (None, None)
        return self._vectors(q, 1, of_q), self._vectors(k, k.shape[-1] // self.width, of_k)

    def _vectors(self, x: Tensor, count: int, gain: Tensor | None) -> Tensor:
        if x.shape[-1] == self.width:
            return self._normed(x, gain)
        vectors = x[..., : count * self.width].unflatten(-1, (count, self.width))
        return torch.cat([self._normed(vectors, gain).flatten(-2), x[..., count * self.width :]], dim=-1)

    def _normed(self, x: Tensor, gain: Tensor | None) -> Tensor:
        """(B, H, ..., D)"""
        with torch.autocast(x.device.type, enabled=False):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            if gain is not None:
                return F.rms_norm(wide, (self.width,), gain.to(wide.dtype), eps=1e-6).to(x.dtype)
            wide = F.normalize(wide, dim=-1, eps=SMALLEST_NORM)
            if self.kind == "cosine":
                sharpness = self.log_sharpness.to(wide.dtype).clamp_max(math.log(LARGEST_SHARPNESS)).exp()
                wide = wide * (sharpness * math.sqrt(self.width)).sqrt().view(-1, *[1] * (x.dim() - 2))
            return wide.to(x.dtype)

    def extra_repr(self) -> str:
        return self.kind
