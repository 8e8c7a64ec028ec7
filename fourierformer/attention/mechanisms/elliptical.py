"""Elliptical attention: distances weighted per coordinate by how much the values changed since the layer below."""

import math
from typing import Literal

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, to_float32
from fourierformer.attention.engines.dot_product import dot_product_attention


@register("elliptical", "softmax that stretches coordinates by how much values changed since the layer below")
class Elliptical(Attention):
    """softmax_j(sum_d m_id q_id k_jd / sqrt(D)), m_i = c_i / max_d c_id, c_id = mean_j |v_jd - v'_jd| over the visible
    keys j, v' the values of the layer below (no gradient). m = 1 in the first layer, which is softmax.

    kernel="gaussian": -sum_d m_id (q_id - k_jd)^2 / (2 sqrt(D)) in place of the dot product, as in the theory; the
    released code has the dot product. A bidirectional model has one m for all queries, as published. In a causal model
    every query has its own, over its past: the released language model averages over the whole sequence, which leaks
    the future. No maps: m depends on the values.
    """

    partial_queries = padding_ok = reads_below = True
    cross_ok = "its metric compares the values of a layer with those of the layer below"
    rotary_ok = "its metric distinguishes coordinates, which a rotation mixes"
    cost, state, source = "N² C", "2 N C + C", "Nielsen et al. 2024, arXiv 2406.13770"

    def __init__(self, geometry: Geometry, *, kernel: Literal["dot", "gaussian"] = "dot"):
        super().__init__(geometry)
        self.kernel = kernel

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *,
        keep: Keep = None, cross: bool = False, below: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        causal = self.geometry.causal
        if self.kernel == "dot":
            if below is not None:
                q = q * self.metric(v, below, keep)[:, :, -q.shape[-2] :].to(q.dtype)
            return dot_product_attention(q, k, v, causal=causal, keep=keep)
        with torch.autocast(q.device.type, enabled=False):  # its terms are large and partly cancel
            q, k, values = to_float32(q, k, v)
            metric = (
                torch.ones_like(q) if below is None else self.metric(v, below, keep)[:, :, -q.shape[-2] :].to(q.dtype)
            )
            origin = k[..., :1, :].detach()  # differences only matter, and every query may see the first key
            q, k = q - origin, k - origin
            # -m (q - k)^2 / 2 = m q k - m k^2 / 2 and a term that is the same for all keys
            q = torch.cat([metric * q, (-metric / 2).expand_as(q)], dim=-1)
            k, scale = torch.cat([k, k.square()], dim=-1), 1 / math.sqrt(self.geometry.head_dim)
            return dot_product_attention(q, k, values, causal=causal, scale=scale, keep=keep).to(v.dtype)

    @torch.no_grad()
    def metric(self, v: Tensor, below: Tensor, keep: Keep = None) -> Tensor:
        """m (B, H, M or 1, D), in float32 at least: of every token in a causal model, else one for all. The number of
        keys cancels: sums take the place of means."""
        v, below = to_float32(v, below)
        change = (v - below).abs()
        if keep is not None:
            change = change * keep[:, None, :, None]
        sums = change.cumsum(-2) if self.geometry.causal else change.sum(-2, keepdim=True)
        largest = sums.amax(-1, keepdim=True)
        return torch.where(largest > 0, sums / largest, 1.0)

    def state_size(self, tokens: int) -> int:
        return super().state_size(tokens) + self.geometry.dim  # the sums
