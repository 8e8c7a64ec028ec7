"""Softmax over dot products, with masks, by torch's fused kernels."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention.base import Keep, bottom_right_causal, sees_nothing, to_float32, visible_keys


def dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None = None, keep: Keep = None
) -> Tensor:
    """torch's scaled_dot_product_attention with a causal mask that is aligned bottom-right (torch's is top-left)."""
    queries, keys = q.shape[-2], k.shape[-2]
    if keep is not None:
        without_keys = sees_nothing(queries, keep, causal=causal)
        return masked_attention(q, k, v, visible_keys(q, k, causal=causal, keep=keep), without_keys, scale=scale)
    if not causal or queries == 1:  # a single last query sees every key
        return _fused(q, k, v, scale=scale)
    if queries == keys:
        return _fused(q, k, v, is_causal=True, scale=scale)
    return masked_attention(q, k, v, bottom_right_causal(queries, keys, q.device), scale=scale)


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, without_keys: Tensor | None = None, *, scale: float | None = None
) -> Tensor:
    """Softmax over the keys where `mask`, bool, broadcastable to (B, H, N, M), is True.

    without_keys (..., N, 1), bool: queries without visible keys, which get 0. Unless given, every query must see a key.
    """
    if without_keys is None:
        return _fused(q, k, v, attn_mask=mask, scale=scale)
    mask = mask | without_keys  # an empty row of a softmax would be 0 / 0
    return _fused(q, k, v, attn_mask=mask, scale=scale).masked_fill(without_keys, 0.0)


def _fused(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """torch's scaled_dot_product_attention, with zeros as further coordinates where its fused kernels refuse the widths
    (a CPU's take one for q, k and v, a GPU's multiples of 4 in float32) and it would hold all N M logits instead."""
    width = max(q.shape[-1], v.shape[-1])
    if q.device.type != "cpu":
        width += -width % 4
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    values = v.shape[-1]
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale)
    return mixed[..., :values]


def attention_to_kept(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, keep: Keep) -> Tensor:
    """masked_attention over the keys to keep; a query without any gets 0."""
    if keep is None:
        return masked_attention(q, k, v, mask)
    mask = mask & keep[:, None, None]
    return masked_attention(q, k, v, mask, ~mask.any(-1, keepdim=True))


def dot_product_maps(q: Tensor, k: Tensor, *, causal: bool, scale: float) -> Tensor:
    """The weights of dot_product_attention, softmax(scale q k^T) over the keys of every row."""
    with torch.autocast(q.device.type, enabled=False):
        q, k = to_float32(q, k)
        logits = scale * (q @ k.mT)
        if causal:
            logits = logits.masked_fill(~bottom_right_causal(q.shape[-2], k.shape[-2], q.device), -math.inf)
        return logits.softmax(-1)
