"""Weights as a product of two thin matrices: Linformer and the Nystroem method."""

from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, all_kept, to_float32
from fourierformer.attention.engines.weighted import scaled_logits, visible_softmax
from fourierformer.errors import SetupError, check_range


class LowRankAttention(Attention):
    """W = left right, with left (N, r) and right (r, M) from `factors`: y = left (right v) in time linear in N and M.

    Rows of `right` are statistics of all keys, so W leaks the future even under a causal mask.
    """

    padding_ok = True

    def factors(self, q: Tensor, k: Tensor, keep: Keep) -> tuple[Tensor, Tensor]:
        """left (B, H, N, r) and right (B, H or 1, r, M), 0 for keys that are left out; q and k in float32 at least."""
        raise TypeError(f"{type(self).__name__} does not define factors()")

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            q, k = to_float32(q, k)
            left, right = self.factors(q, k, keep)
            return (left @ (right @ v.to(left.dtype))).to(v.dtype)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            q, k = to_float32(q, k)
            left, right = self.factors(q, k, None)
            return left @ right


Share = Literal["none", "heads", "kv"]


@register("linformer", "keys and values projected along the sequence to a fixed number of rows, then softmax")
class Linformer(LowRankAttention):
    """softmax(q (E k)^T / sqrt(D)) (F v) with learned E and F (rank, length) (equation 7 of the paper).

    share: `none` = E and F in every head, `heads` = one E and one F for all heads, `kv` = one for both (its section 4).
    Initialised as N(0, 1 / rank), as in its theorem 2. Column j belongs to position j, from the start of the input.
    """

    rotary_ok = True
    longer_ok = False
    causal_ok = "it projects keys and values along the sequence, which mixes future tokens into every row"
    partial_queries = cross_ok = True
    cost, state, source = "N r C", "none", "Wang et al. 2020, arXiv 2006.04768"

    def __init__(self, geometry: Geometry, *, rank: int = 64, share: Share = "kv"):
        super().__init__(geometry)
        check_range("attention.rank", rank, 1)
        heads, parts = geometry.heads if share == "none" else 1, 1 if share == "kv" else 2
        self.along = nn.Parameter(torch.randn(parts, heads, rank, geometry.length) / rank**0.5)

    def factors(self, q: Tensor, k: Tensor, keep: Keep) -> tuple[Tensor, Tensor]:
        if k.shape[-2] > self.geometry.length:
            got = f"got a sequence of {k.shape[-2]}: build it for the longest one"
            raise SetupError(f"linformer projects {self.geometry.length} positions, {got}")
        along = self.along.to(q.dtype)[..., : k.shape[-2]]
        of_keys, of_values = along[0], along[-1]
        if keep is not None:
            of_keys, of_values = (part * keep[:, None, None] for part in (of_keys, of_values))
        return scaled_logits(q, of_keys @ k).softmax(-1), of_values.expand(len(q), -1, -1, -1)


def pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    """Approximate the pseudo-inverse of a (..., m, m) as in the paper (a method of order 3, Razavi et al. 2014):

    Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from Z = A^T / (|A|_1 |A|_inf), with norms of each matrix. With
    E = I - A Z, a step leaves (3 E^3 + E^4) / 4.
    """
    columns, rows = a.abs().sum(-2).amax(-1), a.abs().sum(-1).amax(-1)
    z = a.mT / (columns * rows).clamp_min(torch.finfo(a.dtype).tiny)[..., None, None]
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az))) / 4
    return z


@register("nystrom", "softmax's matrix by the Nystroem method: landmarks are means of segments, with a pseudo-inverse")
class Nystrom(LowRankAttention):
    """softmax(q K~^T) pinv(softmax(Q~ K~^T)) softmax(Q~ k^T), logits over sqrt(D).

    The landmarks Q~ and K~ are means of `landmarks` segments of (nearly) equal length of the tokens that are not
    padding, at most one per token. Without the paper's convolution of the values. Weights may be negative.
    """

    rotary_ok = True
    causal_ok = "its landmarks are means over segments of the sequence, which leak later tokens to every query"
    cross_ok = "its landmarks are means of all queries, so no query could be answered without the others"
    cost, state, source = "N m C", "none", "Xiong et al. 2021, arXiv 2102.03902"

    def __init__(self, geometry: Geometry, *, landmarks: int = 32, iterations: int = 6):
        super().__init__(geometry)
        check_range("attention.landmarks", landmarks, 1)
        check_range("attention.iterations", iterations, 1)
        self.landmarks, self.iterations = landmarks, iterations

    def factors(self, q: Tensor, k: Tensor, keep: Keep) -> tuple[Tensor, Tensor]:
        keep = all_kept(k) if keep is None else keep
        means, there = self._segments(keep, q.dtype)
        of_q, of_k = means @ q, means @ k
        left = visible_softmax(scaled_logits(q, of_k), there)
        middle = visible_softmax(scaled_logits(of_q, of_k), there) * there.mT
        right = visible_softmax(scaled_logits(of_q, k), keep[:, None, None]) * there.mT
        return left @ pseudo_inverse(middle, self.iterations), right

    def _segments(self, keep: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The matrix (B, 1, m, M) of means over segments, and (B, 1, 1, m), False for landmarks without a token."""
        count = keep.sum(1, keepdim=True)
        used = count.clamp_max(self.landmarks)
        segment = (keep.cumsum(1) - 1) * used // count.clamp_min(1)
        numbers = torch.arange(self.landmarks, device=keep.device)
        member = ((segment[:, None] == numbers[:, None]) & keep[:, None]).to(dtype)
        means = member / member.sum(-1, keepdim=True).clamp_min(1)
        return means[:, None], (numbers < used)[:, None, None]
