"""Attention Free Transformer: the values are averaged per channel, with weights from keys and positions alone.

A query only gates the result, y_t = sigmoid(q_t) * sum_u exp(k_u + w_tu) v_u / sum_u exp(k_u + w_tu) (Zhai et al. 2021,
equation 2). No maps: every channel has different weights.

Token t has position t in inputs of any length. Positions are those of a sequence in a causal model, those of the grid
of patches, if any, in a bidirectional one.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, Projected, State, sees_nothing, to_float32
from fourierformer.attention.engines import aft_weights as engine
from fourierformer.attention.engines.aft_weights import CHUNK, EMPTY, Sums, block, merge, pooled, single
from fourierformer.attention.engines.recurrence import in_chunks

DENSE = 256  # up to so many tokens one product with all N^2 biases is faster than many small ones (CPU, measured)
# The factor of the average of the values as a function of the query: the paper's sigmoid; `none` ignores the query.
Gate = Literal["sigmoid", "relu", "tanh", "none"]
GATES: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "relu": torch.relu, "tanh": torch.tanh}


class AFT(Attention):
    """gate(q), by default a sigmoid, times an average of the values, in float32 at least. Variants define `average`."""

    rotary_ok = "its keys are weights of single channels"
    partial_queries = padding_ok = True
    qk_norm_ok = "its keys are weights of single channels, which no query is compared with"
    source = "Zhai et al. 2021, arXiv 2105.14103"

    def __init__(self, geometry: Geometry, *, gate: Gate = "sigmoid"):
        super().__init__(geometry)
        self.gate = gate
        if gate == "none":
            self.qkv = nn.Linear(geometry.dim, 2 * geometry.dim, bias=geometry.bias)

    def state_size(self, tokens: int) -> int:
        if self.gate == "none" and self.start(1) is None:
            return tokens * self.qkv.out_features  # keys and values: there are no queries
        return super().state_size(tokens)

    @property
    def widths(self) -> tuple[int, int, int]:
        """(H, numbers per key and head, numbers per value and head)."""
        return self.geometry.heads, self.geometry.head_dim, self.geometry.head_dim

    def average(self, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        """The average of every query: k (B, H, N, 1 or D), v (B, H, N, D) -> (B, H, N, D), or (B, H, 1, D) where it is
        the same for all queries."""
        raise TypeError(f"{type(self).__name__} does not define average()")

    def next_sums(self, k: Tensor, v: Tensor, state: State) -> tuple[Sums, State]:
        """The sums for the average of one more token, and the next state."""
        raise TypeError(f"{type(self).__name__} does not define next_sums()")

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        causal, queries = self.geometry.causal and not cross, q.shape[-2]
        with torch.autocast(q.device.type, enabled=False):
            q, k, values = to_float32(q, k, v)
            k = k if keep is None else k.masked_fill(~keep[:, None, :, None], EMPTY)
            average = self.average(k, values, causal)[:, :, -queries:]
            if keep is not None:  # without visible keys it is the average over all EMPTY keys
                average = average.masked_fill(sees_nothing(queries, keep, causal=causal), 0.0)
            return self._gated(q, average).to(v.dtype)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        with torch.autocast(q.device.type, enabled=False):
            q, k, values = to_float32(q, k, v)
            sums, state = self.next_sums(k, values, state)
            return self._gated(q, sums.average).to(v.dtype), state

    def _gated(self, q: Tensor, average: Tensor) -> Tensor:
        """The output (B, H, N, D); `average` may be the same for all queries."""
        if self.gate == "none":
            return average.expand(-1, -1, q.shape[-2], -1)
        return GATES[self.gate](q) * average

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """Projections as in Attention; without a gate q has width 0."""
        if self.gate != "none":
            return super().project(x, memory, last)
        q, k, v = self._projected(x, memory, last, (0, self.geometry.dim, self.geometry.dim))
        return q[:, None].expand(-1, self.geometry.heads, -1, -1), self._split(k), self._split(v)

    def _empty_tokens(self, batch: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of weight 0, which fill a state before the first token."""
        heads, key, value = self.widths
        (like,) = to_float32(self.qkv.weight)
        return like.new_full((batch, heads, tokens, key), EMPTY), like.new_zeros(batch, heads, tokens, value)


@register("aft_simple", "per-channel softmax over the keys alone, gated by the query; no positions")
class AFTSimple(AFT):
    """w = 0: no positions (AFT-simple of the paper). O(N C) time, causal by a scan of 2 log2(N) steps."""

    cross_ok = True
    cost, state = "N C", "3 C"

    def average(self, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return engine.running(single(k, v)).average if causal else pooled(k, v).average

    def start(self, batch: int) -> State | None:
        return tuple(single(*self._empty_tokens(batch, 1))) if self.geometry.causal else None

    def next_sums(self, k: Tensor, v: Tensor, state: State) -> tuple[Sums, State]:
        sums = merge(Sums(*state), single(k, v))
        return sums, tuple(sums)


class BiasedAFT(AFT):
    """Position biases w_tu that are 0 where t and u are more than `reach` apart (on a grid, in rows or in columns)."""

    cross_ok = "its biases belong to pairs of positions of one sequence, and between two sequences there are none"

    def __init__(self, geometry: Geometry, reach: int, gate: Gate):
        super().__init__(geometry, gate=gate)
        self.reach = reach
        self.grid, self.prefix = (None, 0) if geometry.causal else (geometry.grid, geometry.prefix)

    def biases(self, tokens: int) -> Tensor:
        """w of the first positions: (H or 1, tokens, tokens)."""
        raise TypeError(f"{type(self).__name__} does not define biases()")

    def row_biases(self, rows: int, size: int, offset: int) -> Tensor:
        """w between each row of tokens and the row `offset` further on, (H or 1, rows or 1, size, size): rows of the
        grid, or of a sequence cut into rows, without the prefix."""
        raise TypeError(f"{type(self).__name__} does not define row_biases()")

    def average(self, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        tokens = k.shape[-2]
        size, reach = (self.grid[1], self.reach) if self.grid else (max(CHUNK, engine.power_of_two(self.reach)), 1)
        if tokens > DENSE and (2 * reach + 1) * size < tokens:
            return self._banded_average(k, v, size, reach)
        w = self.biases(tokens).to(k.dtype)
        return engine.causal_average(w, k, v) if causal else block(w, k, v).average

    def _banded_average(self, k: Tensor, v: Tensor, size: int, reach: int) -> Tensor:
        tokens, prefix = k.shape[-2], self.prefix
        rows = in_chunks(k[:, :, prefix:], size, EMPTY), in_chunks(v[:, :, prefix:], size)

        def w(offset: int) -> Tensor:
            return self.row_biases(rows[0].shape[-3], size, offset).to(k.dtype)

        sums = engine.banded_causal_sums(w, *rows) if self.geometry.causal else engine.banded_full_sums(w, reach, *rows)
        if not prefix:
            return sums.average.flatten(-3, -2)[:, :, :tokens]
        first = Sums(*(x.unsqueeze(-2) for x in pooled(k[:, :, :prefix], v[:, :, :prefix])))
        patches = merge(sums, first).average.flatten(-3, -2)[:, :, : tokens - prefix]
        return torch.cat([pooled(k, v).average.expand(-1, -1, prefix, -1), patches], dim=-2)


class WindowedAFT(BiasedAFT):
    """BiasedAFT with a decoding state of constant size: sums over the tokens out of reach, whose w remains 0, and the
    keys and values of the `recent` others."""

    def __init__(self, geometry: Geometry, reach: int, gate: Gate):
        super().__init__(geometry, reach, gate)
        self.recent = reach + 1 if self.longer_ok else min(reach + 1, geometry.length)

    def recent_biases(self, position: Tensor) -> Tensor:
        """w between the token at `position` (1,) and the `recent` last ones up to it: (H or 1, 1, recent)."""
        raise TypeError(f"{type(self).__name__} does not define recent_biases()")

    def start(self, batch: int) -> State | None:
        if not self.geometry.causal:
            return None
        position = torch.zeros(1, dtype=torch.long, device=self.qkv.weight.device)
        return position, *self._empty_tokens(batch, self.recent), *single(*self._empty_tokens(batch, 1))

    def next_sums(self, k: Tensor, v: Tensor, state: State) -> tuple[Sums, State]:
        position, keys, values, *sums = state
        older = merge(Sums(*sums), single(keys[:, :, :1], values[:, :, :1]))
        keys, values = torch.cat([keys[:, :, 1:], k], dim=2), torch.cat([values[:, :, 1:], v], dim=2)
        near = block(self.recent_biases(position).to(k.dtype), keys, values)
        return merge(older, near), (position + 1, keys, values, *older)
