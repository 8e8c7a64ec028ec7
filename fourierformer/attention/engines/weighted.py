"""Attention by one explicit matrix of weights: the base of mechanisms that change logits, masks or weights.

The formula is computed exactly, in memory quadratic in the number of tokens: a subclass defines `weights`; causality,
padding, other sequences and maps follow from the mask that it gets.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from fourierformer.attention.base import Attention, Keep, to_float32, visible_keys

WATCHED_SEQUENCES = 4  # of a batch


class WeightedAttention(Attention):
    """y_i = sum_j W_ij v_j with W from `weights`. O(N^2 C) time, N^2 numbers of memory per head."""

    partial_queries = True
    cross_ok: bool | str = True
    padding_ok: bool | str = True
    cost: ClassVar[str] = "N² C"
    state: ClassVar[str] = "2 N C"

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        """W: q (B, H, N, K), k (B, H, M, K), in float32 at least, -> (B, H, N, M), 0 for keys that are not visible.

        visible: bool, broadcasts to (B, 1, N, M), True for the keys that a query may see; the queries of a causal model
        are the last N of M positions.
        """
        raise TypeError(f"{type(self).__name__} does not define weights()")

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        weights = self._weights(q, k, causal=self.geometry.causal and not cross, keep=keep)
        if not self.training and q.shape[-2] > 1:  # not for one query at a time (sliding windows, generation)
            self.watch(of_last_query(weights[:WATCHED_SEQUENCES], None if cross else keep))
        with torch.autocast(q.device.type, enabled=False):
            return (weights @ v.to(weights.dtype)).to(v.dtype)

    def watch(self, weights: Tensor) -> None:
        """Called in evaluation with the weights (b, H, M) of the last query, which sees every key, of the first
        WATCHED_SEQUENCES: for `diagnostics`."""

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        return self._weights(q, k, causal=self.geometry.causal)

    def _weights(self, q: Tensor, k: Tensor, *, causal: bool, keep: Keep = None) -> Tensor:
        visible = visible_keys(q, k, causal=causal, keep=keep)
        with torch.autocast(q.device.type, enabled=False):
            q, k = to_float32(q, k)
            return self.weights(q, k, visible)


def of_last_query(rows: Tensor, keep: Keep) -> Tensor:
    """(B, H, N, K) -> (B, H, K): of the last query that is not padding."""
    if keep is None:
        return rows[:, :, -1]
    keep = keep[: len(rows), -rows.shape[-2] :]
    last = (keep * torch.arange(keep.shape[1], device=keep.device)).argmax(1)
    return rows.take_along_dim(last[:, None, None, None], 2)[:, :, 0]


def scaled_logits(q: Tensor, k: Tensor) -> Tensor:
    """q.k / sqrt(D), the logits of softmax."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def visible_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys; 0 for all others, and for a query without visible keys."""
    without_keys = ~visible.any(-1, keepdim=True)
    weights = logits.masked_fill(~(visible | without_keys), -math.inf).softmax(-1)  # an empty row would be 0 / 0
    return weights.masked_fill(without_keys, 0.0)
