"""Dot-product attention, the baseline."""

import math

from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Keep
from fourierformer.attention.engines.dot_product import dot_product_attention, dot_product_maps


@register("softmax", "exponentials of scaled dot products")
class Softmax(Attention):
    """softmax(q k^T / sqrt(D)) v through torch's fused kernels (Vaswani et al. 2017). O(N^2 D) time, O(N) memory."""

    rotary_ok = True
    partial_queries = cross_ok = padding_ok = True
    cost, state, source = "N² C", "2 N C", "Vaswani et al. 2017, arXiv 1706.03762"

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        return dot_product_attention(q, k, v, causal=self.geometry.causal and not cross, keep=keep)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        return dot_product_maps(q, k, causal=self.geometry.causal, scale=1 / math.sqrt(self.geometry.head_dim))
