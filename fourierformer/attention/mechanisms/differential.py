"""Differential attention: the difference of two softmax maps, so that what both attend to cancels."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep
from fourierformer.attention.engines.dot_product import dot_product_attention
from fourierformer.errors import SetupError
from fourierformer.marks import mark


@register("differential", "the difference of the softmax maps of two heads: what both attend to cancels")
class Differential(Attention):
    """Heads 2h and 2h + 1 are a pair with one value of width 2 D:

    y = (1 - l0) RMSNorm(softmax(q1 k1^T / sqrt(D)) v - l softmax(q2 k2^T / sqrt(D)) v) * scale,
    l = exp(a1.b1) - exp(a2.b2) + l0, l0 = 0.8 - 0.6 e^(-0.3 layer), with learned vectors a, b shared by all heads.

    Weights of both signs on purpose. Needs an even number of heads.
    """

    partial_queries = cross_ok = padding_ok = True
    cost, state, source = "3/2 N² C", "2 N C", "Ye et al. 2024, arXiv 2410.05258"

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        if geometry.heads % 2:
            raise SetupError(
                f"attention=differential makes pairs of heads: model.heads must be even, got {geometry.heads}"
            )
        self.first = 0.8 - 0.6 * math.exp(-0.3 * geometry.layer)
        self.vectors = nn.Parameter(0.1 * torch.randn(4, geometry.head_dim))  # a1, b1, a2, b2
        self.scale = nn.Parameter(torch.ones(2 * geometry.head_dim))
        mark(self, "vectors", no_weight_decay=True)

    def share(self) -> Tensor:
        """l, of the second map."""
        a1, b1, a2, b2 = self.vectors.float() if self.vectors.dtype != torch.float64 else self.vectors
        return (a1 * b1).sum().exp() - (a2 * b2).sum().exp() + self.first

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        """(B, H / 2, N, 2 D)."""
        values = torch.cat([v[:, 0::2], v[:, 1::2]], dim=-1)
        first, second = (
            dot_product_attention(
                q[:, h::2], k[:, h::2], values, causal=self.geometry.causal and not cross,
                scale=1 / math.sqrt(self.geometry.head_dim), keep=keep,
            )
            for h in (0, 1)
        )  # fmt: skip
        difference = first - self.share().to(first.dtype) * second
        normed = F.rms_norm(difference, (difference.shape[-1],), self.scale.to(first.dtype), eps=1e-5)
        return (1 - self.first) * normed

    def diagnostics(self) -> dict[str, float]:
        return {"second_map": self.share().item()}
