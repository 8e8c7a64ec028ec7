"""Stick-breaking attention: each key, from the newest to the oldest, gets a share of the remaining weight."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits


@register(
    "stick_breaking", "each key, the newest first, gets a share of the remaining weight: recency without positions"
)
class StickBreaking(WeightedAttention):
    """W_ij = b_ij prod_{j < m < i} (1 - b_im) for j < i, b = sigmoid(q.k / sqrt(D)).

    The rest goes to token i itself, so that rows sum to 1; the first token returns its own value.
    """

    rotary_ok = True
    full_ok = "keys take their shares in the order of the tokens"
    cross_ok = "its keys are the past of the query"
    source = "Tan et al. 2024, arXiv 2410.17980"

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        queries, keys = q.shape[-2], k.shape[-2]
        logits = scaled_logits(q, k)
        own = torch.arange(keys - queries, keys, device=q.device)[:, None] == torch.arange(keys, device=q.device)
        past = visible & ~own
        left = F.logsigmoid(-logits).masked_fill(~past, 0.0)  # log (1 - b)
        after = left.flip(-1).cumsum(-1).flip(-1) - left  # sum over j < m
        shares = (F.logsigmoid(logits) + after).masked_fill(~past, -torch.inf).exp()
        rest = left.sum(-1, keepdim=True).exp() * (own & visible)
        return shares + rest
