"""Induced set attention: the sequence is read into a few learned points, and the tokens read the points."""

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, sees_nothing
from fourierformer.attention.engines.dot_product import dot_product_attention
from fourierformer.errors import check_range


@register("isab", "learned inducing points attend to the sequence, and the tokens to what the points hold")
class InducedSetAttention(Attention):
    """H = MHA(I, X), Y = MHA(X, H) with learned points I (ISAB, equations 9 and 10 of the paper).

    The projections of X serve both steps: its keys and values the first, its queries the second. I are queries in each
    head; keys and values of H have a projection of their own. Residuals and feed-forward layers, which the paper's
    blocks have between the two, are the model's. No maps: between two steps there is a projection of the values.
    """

    causal_ok = "its inducing points read the whole sequence, and every token reads them"
    partial_queries = cross_ok = padding_ok = True
    cost, state, source = "N m C", "none", "Lee et al. 2019, arXiv 1810.00825"

    def __init__(self, geometry: Geometry, *, points: int = 32):
        super().__init__(geometry)
        check_range("attention.points", points, 1)
        self.points = nn.Parameter(torch.randn(geometry.heads, points, geometry.head_dim))
        self.of_points = nn.Linear(geometry.dim, 2 * geometry.dim, bias=geometry.bias)

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Tensor | None = None, cross: bool = False
    ) -> Tensor:
        points = self.points.to(q.dtype).expand(len(q), -1, -1, -1)
        held = dot_product_attention(points, k, v, causal=False, keep=keep).transpose(1, 2).flatten(-2)
        keys, values = (self._split(part) for part in self.of_points(held).chunk(2, dim=-1))
        read = dot_product_attention(q, keys, values, causal=False)
        return read if keep is None else read.masked_fill(sees_nothing(q.shape[-2], keep, causal=False), 0.0)
