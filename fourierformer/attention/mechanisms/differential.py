"""Differential attention: the difference of two softmax maps, so that what both attend to cancels."""

import math

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, to_float32
from fourierformer.attention.engines.dot_product import dot_product_attention
from fourierformer.attention.engines.head_norm import head_norm
from fourierformer.errors import SetupError
from fourierformer.marks import mark


@register("differential", "the difference of two softmax maps per head: what both attend to cancels")
class Differential(Attention):
    """Each head has two queries and two keys, the halves q1, q2 of its query and k1, k2 of its key, and one value:

    y = (1 - l0) RMSNorm(softmax(q1 k1^T / sqrt(D/2)) v - l softmax(q2 k2^T / sqrt(D/2)) v) * scale,
    l = exp(a1.b1) - exp(a2.b2) + l0, l0 = 0.8 - 0.6 e^(-0.3 layer), with learned vectors a, b shared by all heads.

    Weights of both signs on purpose. Needs an even number of coordinates per head. Time 3/2 N² C without the zeros that
    torch's fused kernels need beside the halves.
    """

    partial_queries = cross_ok = padding_ok = True
    rotary_ok: bool | str = True
    compared = 2  # each half is a query or a key
    cost, state, source = "2 N² C", "2 N C", "Ye et al. 2024, arXiv 2410.05258"

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        if geometry.head_dim % 2:
            width = f"{geometry.head_dim} coordinates per head"
            raise SetupError(f"attention=differential halves queries and keys: {width} is an odd number")
        if geometry.head_dim % 4:
            self.rotary_ok = "it cuts a pair of coordinates in two: dim / heads must be a multiple of 4"
        self.first = 0.8 - 0.6 * math.exp(-0.3 * geometry.layer)
        self.vectors = nn.Parameter(0.1 * torch.randn(4, geometry.head_dim // 2))  # a1, b1, a2, b2
        self.scale = nn.Parameter(torch.ones(geometry.head_dim))
        mark(self, "vectors", no_weight_decay=True)

    def share(self) -> Tensor:
        """l, of the second map."""
        (vectors,) = to_float32(self.vectors)
        a1, b1, a2, b2 = vectors
        return (a1 * b1).sum().exp() - (a2 * b2).sum().exp() + self.first

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        causal = self.geometry.causal and not cross
        first, second = (
            dot_product_attention(*halves, v, causal=causal, keep=keep)
            for halves in zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1), strict=True)
        )
        difference = first - self.share().to(first.dtype) * second
        return (1 - self.first) * head_norm(difference, self.scale)

    def diagnostics(self) -> dict[str, float]:
        return {"second_map": self.share().item()}
