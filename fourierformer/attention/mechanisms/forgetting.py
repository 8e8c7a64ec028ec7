"""Forgetting attention: softmax whose logits fall with every token in between, by an amount that the token decides."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Projected
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits, visible_softmax


@register("forgetting", "softmax whose logits fall with every token in between, by a learned gate of that token")
class Forgetting(WeightedAttention):
    """softmax_{j <= i}(q_i.k_j / sqrt(D) + sum_{j < t <= i} log f_t), f_t = sigmoid(w.x_t + b) per head and token.

    With f = e^(-m), the same for all tokens, this is ALiBi with slope m. b = `gate_bias` at first: 0 forgets half at
    every token. Position embeddings remain, which the paper removes.
    """

    rotary_ok = True
    full_ok = "a gate that forgets needs an order of the tokens"
    cross_ok = "its gates lie between two tokens of one sequence"
    state, source = "2 N C + N H", "Lin et al. 2025, arXiv 2503.02130"

    def __init__(self, geometry: Geometry, *, gate_bias: float = 0.0):
        super().__init__(geometry)
        if geometry.head_dim == 1:
            self.qk_norm_ok = "beside keys of one coordinate its gate would be taken for a second key"
        self.gate = nn.Linear(geometry.dim, geometry.heads, bias=False)
        self.gate_bias = nn.Parameter(torch.full((geometry.heads,), float(gate_bias)))

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """k of width D + 1: the key, and log f of its token."""
        q, k, v = super().project(x, memory, last)
        log_gate = F.logsigmoid(self.gate(x) + self.gate_bias).mT[..., None]
        return q, torch.cat([k, log_gate.to(k.dtype)], dim=-1), v

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        k, log_gate = k[..., :-1], k[..., -1]
        kept = visible[..., -1, :]  # the last query sees all tokens but padding, which forgets nothing
        # in float64: differences of long sums cancel
        passed = log_gate.masked_fill(~kept, 0.0).cumsum(-1, dtype=torch.float64)
        between = (passed[..., -q.shape[-2] :, None] - passed[..., None, :]).to(q.dtype)
        return visible_softmax(scaled_logits(q, k) + between.clamp_max(0), visible)

    def state_size(self, tokens: int) -> int:
        return super().state_size(tokens) + tokens * self.geometry.heads
