"""Residual attention scores (RealFormer): the logits of the layer below are added to those of every layer."""

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Keep, to_float32, visible_keys
from fourierformer.attention.engines.weighted import scaled_logits, visible_softmax
from fourierformer.attention.switches import Carry


@register("residual_scores", "softmax of the layer's logits plus those of the layer below, which include its own below")
class ResidualScores(Attention):
    """softmax(S_l) v with S_l = q k^T / sqrt(D) + S_(l - 1), S_0 = 0 below the first layer, which is softmax.

    The logits of one layer are kept until the next: N^2 numbers per head. No maps: they depend on the layers below.
    """

    rotary_ok = partial_queries = padding_ok = reads_below = True
    cross_ok = "its logits of the layer below are those of tokens of one sequence"
    cost, state, source = "N² C", "2 N C", "He et al. 2020, arXiv 2012.11747"

    def from_below(self, v: Tensor, carry: Carry | None) -> Carry:
        return self._carry_or_new(carry)

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *,
        keep: Keep = None, cross: bool = False, below: Carry | None = None,
    ) -> Tensor:  # fmt: skip
        visible = visible_keys(q, k, causal=self.geometry.causal, keep=keep)
        with torch.autocast(q.device.type, enabled=False):
            q, k, values = to_float32(q, k, v)
            scores = scaled_logits(q, k)
            if below is not None:
                if below.scores_below is not None:
                    scores = scores + below.scores_below[:, :, -q.shape[-2] :]
                below.scores_below = scores
            return (visible_softmax(scores, visible) @ values).to(v.dtype)
