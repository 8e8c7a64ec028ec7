"""Luna: a few learned queries pack the sequence, and the tokens attend to the packed rows."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Keep, State, to_float32, visible_keys
from fourierformer.attention.engines.weighted import scaled_logits, visible_softmax
from fourierformer.attention.mechanisms.low_rank import LowRankAttention
from fourierformer.errors import check_range


@register("luna", "learned queries pack the sequence into a few rows, from which the tokens read; causal too")
class Luna(LowRankAttention):
    """Packing K_P = A k, V_P = A v with A = softmax(P k^T / sqrt(D)), then softmax(q K_P^T / sqrt(D)) V_P; P are `rows`
    learned queries per head. In the paper the next layer gets the packed rows; here every layer has its own.

    Causal: instead of a softmax over tokens omega_j = log2(1 + 2^(P k_j / sqrt(D))) per token, and K_P, V_P at token t
    are the means of omega_j k_j and omega_j v_j over j <= t. Computed as N x N weights; `mix_step` stores both means.

    Differs from the source in the second step, whose keys and values the source projects again from the packed rows.
    """

    rotary_ok = "it compares keys with learned queries, which have no position"
    qk_norm_ok = "its queries are compared with packed rows, not with keys"
    partial_queries = cross_ok = True
    cost, state, source = "N² (C + H r); N r C where bidirectional", "2 r C + 1", "Ma et al. 2021, arXiv 2106.01540"

    def __init__(self, geometry: Geometry, *, rows: int = 16):
        super().__init__(geometry)
        check_range("attention.rows", rows, 1)
        self.packing = nn.Parameter(torch.randn(geometry.heads, rows, geometry.head_dim))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        if cross or not self.geometry.causal:
            return super().mix(q, k, v, x, keep=keep)
        weights = self._causal_weights(q, k, keep)
        with torch.autocast(q.device.type, enabled=False):
            return (weights @ v.to(weights.dtype)).to(v.dtype)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        return self._causal_weights(q, k, None) if self.geometry.causal else super().maps(q, k)

    def factors(self, q: Tensor, k: Tensor, keep: Keep) -> tuple[Tensor, Tensor]:
        visible = visible_keys(q, k, causal=False, keep=keep)
        packed = visible_softmax(scaled_logits(self.packing.to(q.dtype), k), visible)
        return scaled_logits(q, packed @ k).softmax(-1), packed

    def _causal_weights(self, q: Tensor, k: Tensor, keep: Keep) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            q, k = to_float32(q, k)
            omega, tokens = self._omega(k), k.new_ones(1, k.shape[-2])
            if keep is not None:
                omega, tokens = omega * keep[:, None, :, None], keep.to(k.dtype)
            queries, offset = q.shape[-2], k.shape[-2] - q.shape[-2]
            seen = tokens.cumsum(1)[:, None, -queries:, None].clamp_min(1)
            read = (scaled_logits(q, k).tril(offset) @ omega / seen).softmax(-1)
            return (read @ omega.mT).tril(offset) / seen

    def _omega(self, k: Tensor) -> Tensor:
        """The positive weight of each token in each packed row, (B, H, M, rows)."""
        return F.softplus(scaled_logits(k, self.packing.to(k.dtype)), beta=math.log(2))

    def start(self, batch: int) -> State | None:
        if not self.geometry.causal:
            return None
        (like,) = to_float32(self.packing)
        sums = like.new_zeros(batch, *like.shape)
        return sums, torch.zeros_like(sums), sums.new_zeros(())

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        of_k, of_v, tokens = state
        with torch.autocast(q.device.type, enabled=False):
            q, k, value = (t.to(of_k.dtype) for t in (q, k, v))
            omega = self._omega(k).mT
            of_k, of_v, tokens = of_k + omega * k, of_v + omega * value, tokens + 1
            out = scaled_logits(q, of_k / tokens).softmax(-1) @ of_v / tokens
            return out.to(v.dtype), (of_k, of_v, tokens)
