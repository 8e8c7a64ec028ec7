"""Induced set attention: the sequence is read into a few learned points, and the tokens read the points."""

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, sees_nothing
from fourierformer.attention.engines.dot_product import dot_product_attention
from fourierformer.errors import check_range


@register("isab", "learned inducing points attend to the sequence, and the tokens attend to the points")
class InducedSetAttention(Attention):
    """H = MHA(I, X), Y = MHA(X, H) with learned points I (ISAB, equations 9 and 10 of the paper).

    Keys and values of X enter the first step, its queries the second. I are queries per head; keys and values of H have
    a separate projection. Without the paper's residuals and feed-forward layers between the steps, which the model has.
    No maps: a projection of the values separates the steps.
    """

    rotary_ok = "it compares queries and keys with learned points, which have no position"
    qk_norm_ok = "its queries are compared with inducing points, not with keys"
    causal_ok = "its inducing points read the whole sequence, and every token reads them"
    partial_queries = cross_ok = padding_ok = True
    cost, state, source = "N m C", "none", "Lee et al. 2019, arXiv 1810.00825"

    def __init__(self, geometry: Geometry, *, points: int = 32):
        super().__init__(geometry)
        check_range("attention.points", points, 1)
        self.points = nn.Parameter(torch.randn(geometry.heads, points, geometry.head_dim))
        self.of_points = nn.Linear(geometry.dim, 2 * geometry.dim, bias=geometry.bias)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        points = self.points.to(q.dtype).expand(len(q), -1, -1, -1)
        held = dot_product_attention(points, k, v, causal=False, keep=keep).transpose(1, 2).flatten(-2)
        keys, values = (self._split(part) for part in self.of_points(held).chunk(2, dim=-1))
        read = dot_product_attention(q, keys, values, causal=False)
        return read if keep is None else read.masked_fill(sees_nothing(q.shape[-2], keep, causal=False), 0.0)
