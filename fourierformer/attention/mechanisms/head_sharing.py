"""Softmax attention with coupled heads: they mix their logits and weights, or share keys and values."""

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Projected
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits, visible_softmax
from fourierformer.attention.mechanisms.softmax import Softmax
from fourierformer.errors import SetupError
from fourierformer.marks import mark


@register("talking_heads", "softmax with learned mixtures of the heads' logits before it and of their weights after it")
class TalkingHeads(WeightedAttention):
    """J = q k^T / sqrt(D) per head; W = softmax(P_l J) P_w, P_l and P_w (H, H) mix heads.

    Both are initialised as the identity (softmax). Weights may become negative, and rows need not sum to 1.
    """

    rotary_ok = True
    cost, source = "N² (C + H²)", "Shazeer et al. 2020, arXiv 2003.02436"

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        self.of_logits = nn.Parameter(torch.eye(geometry.heads))
        self.of_weights = nn.Parameter(torch.eye(geometry.heads))
        mark(self, "of_logits", no_weight_decay=True)
        mark(self, "of_weights", no_weight_decay=True)

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        logits = torch.einsum("gh,bhnm->bgnm", self.of_logits.to(q.dtype), scaled_logits(q, k))
        return torch.einsum("gh,bhnm->bgnm", self.of_weights.to(q.dtype), visible_softmax(logits, visible))


@register("grouped_query", "softmax whose heads share keys and values in groups; with one group multi-query attention")
class GroupedQuery(Softmax):
    """Head h uses the keys and values of group h // (H / kv_heads).

    kv_heads = 1 is multi-query attention (Shazeer 2019, arXiv 1911.02150), kv_heads = H is softmax. Decoding keeps
    kv_heads / H of the keys and values.

    Differs from the source in the default of one group, with which the studies rank it, too (there 8 groups).
    """

    state, source = "2 N D kv_heads", "Ainslie et al. 2023, arXiv 2305.13245"

    def __init__(self, geometry: Geometry, *, kv_heads: int = 1):
        super().__init__(geometry)
        if kv_heads < 1 or geometry.heads % kv_heads:
            raise SetupError(f"attention.kv_heads must divide model.heads={geometry.heads}, got {kv_heads}")
        self.kv_heads = kv_heads
        self.qkv = nn.Linear(geometry.dim, geometry.dim + 2 * kv_heads * geometry.head_dim, bias=geometry.bias)

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        shared = self.kv_heads * self.geometry.head_dim
        q, k, v = (self._split(part) for part in self._projected(x, memory, last, (self.geometry.dim, shared, shared)))
        group = self.geometry.heads // self.kv_heads
        return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
