"""Softmax over dot products, with masks: torch's fused kernels where they serve."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention.base import bottom_right_causal, sees_nothing, visible_keys


def dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None = None, keep: Tensor | None = None
) -> Tensor:
    """torch's scaled_dot_product_attention, but with fewer queries than keys the causal mask is aligned bottom-right
    (torch's is top-left).
    keep (B, M), bool: False for keys that are left out.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if keep is not None:
        without_keys = sees_nothing(queries, keep, causal=causal)
        return masked_attention(q, k, v, visible_keys(q, k, causal=causal, keep=keep), without_keys, scale=scale)
    if not causal or queries == 1:  # a single last query sees every key
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    mask = bottom_right_causal(queries, keys, q.device)
    return masked_attention(q, k, v, mask, scale=scale)


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, without_keys: Tensor | None = None, *, scale: float | None = None
) -> Tensor:
    """Softmax over the keys where `mask` is True: bool, broadcasts to (B, H, N, M).

    without_keys (..., N, 1), bool: queries that see no key, which get 0. Unless it is given, every query must see one.
    """
    if without_keys is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    mask = mask | without_keys  # an empty row of a softmax would be 0 / 0
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).masked_fill(without_keys, 0.0)


def dot_product_maps(q: Tensor, k: Tensor, *, causal: bool, scale: float) -> Tensor:
    """The weights of dot_product_attention, softmax(scale q k^T) over the keys of every row."""
    with torch.autocast(q.device.type, enabled=False):
        dtype = torch.promote_types(q.dtype, torch.float32)
        logits = scale * (q.to(dtype) @ k.to(dtype).mT)
        if causal:
            logits = logits.masked_fill(~bottom_right_causal(q.shape[-2], k.shape[-2], q.device), -math.inf)
        return logits.softmax(-1)
