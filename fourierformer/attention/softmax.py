"""Dot-product attention, the baseline."""

import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, bottom_right_causal


@register("softmax")
class Softmax(Attention):
    """softmax(q k^T / sqrt(D)) v through torch's fused kernels (Vaswani et al. 2017). O(N^2 D) time, O(N) memory."""

    partial_queries = True

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return dot_product_attention(q, k, v, causal=self.geometry.causal)


def dot_product_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None = None) -> Tensor:
    """SDPA whose causal mask is aligned bottom-right when there are fewer queries than keys (torch's is top-left)."""
    queries, keys = q.shape[-2], k.shape[-2]
    if not causal or queries == 1:  # a single last query sees every key
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    mask = bottom_right_causal(queries, keys, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
