"""Fewer keys and values: blocks compressed by a convolution, or pooled windows beside a fine one."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, all_kept, to_float32, visible_keys
from fourierformer.attention.engines.recurrence import in_chunks
from fourierformer.attention.engines.weighted import scaled_logits, visible_softmax
from fourierformer.errors import check_range


@register("mca", "every few keys and values are compressed into one by a convolution")
class MemoryCompressed(Attention):
    """Keys and values of each block of `ratio` tokens are compressed by a convolution of as many taps, per head; then
    softmax over the blocks (memory-compressed attention, section 4.2.3 of the paper).

    In a causal model a block is visible from its last token on; before, a query sees the uncompressed tokens of its own
    block, so that the whole past is visible. (The paper has layers of local attention for that.) Padding counts as
    zeros; a block of padding is invisible. No maps: a convolution mixes the coordinates of the values.
    """

    rotary_ok = "its convolution of the keys distinguishes coordinates, which a rotation mixes"
    cross_ok = padding_ok = True
    cost, state, source = "N² C / r", "2 N C / r", "Liu et al. 2018, arXiv 1801.10198"

    def __init__(self, geometry: Geometry, *, ratio: int = 3):
        super().__init__(geometry)
        check_range("attention.ratio", ratio, 1)
        self.ratio = ratio
        shape = (geometry.heads, ratio, geometry.head_dim, geometry.head_dim)
        self.of_keys = nn.Parameter(torch.randn(shape) / (ratio * geometry.head_dim) ** 0.5)
        self.of_values = nn.Parameter(torch.randn(shape) / (ratio * geometry.head_dim) ** 0.5)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        causal = self.geometry.causal and not cross
        with torch.autocast(q.device.type, enabled=False):
            keep = all_kept(k) if keep is None else keep
            q, *keys_values = to_float32(q, k, v)
            keys, values = (in_chunks(t.masked_fill(~keep[:, None, :, None], 0.0), self.ratio) for t in keys_values)
            kept = in_chunks(keep[:, None, :, None], self.ratio)[..., 0]
            return (self._causal if causal else self._full)(q, keys, values, kept).to(v.dtype)

    def state_size(self, tokens: int) -> int:
        """Compressed blocks, and the tokens of an incomplete block."""
        return 2 * self.geometry.dim * (tokens // self.ratio + self.ratio - 1)

    def _full(self, q: Tensor, keys: Tensor, values: Tensor, kept: Tensor) -> Tensor:
        weights = visible_softmax(scaled_logits(q, _compressed(keys, self.of_keys)), kept.any(-1)[:, :, None])
        return weights @ _compressed(values, self.of_values)

    def _causal(self, q: Tensor, keys: Tensor, values: Tensor, kept: Tensor) -> Tensor:
        """As many queries as keys."""
        tokens, blocks, ratio = q.shape[-2], keys.shape[-3], self.ratio
        position = torch.arange(blocks * ratio, device=q.device)
        own, complete = position // ratio, position % ratio == ratio - 1
        past = (torch.arange(blocks, device=q.device) < (own + complete.long())[:, None]) & kept.any(-1)[:, :, None]
        near = torch.ones(ratio, ratio, dtype=torch.bool, device=q.device).tril() & kept[..., None, :]
        near = near.flatten(-3, -2) & ~complete[:, None]
        q = F.pad(q, (0, 0, 0, blocks * ratio - tokens))
        far_logits = scaled_logits(q, _compressed(keys, self.of_keys))
        near_logits = scaled_logits(q.unflatten(-2, (blocks, ratio)), keys).flatten(-3, -2)
        weights = visible_softmax(torch.cat([far_logits, near_logits], -1), torch.cat([past, near], -1))
        far, near_weights = weights.split((blocks, ratio), dim=-1)
        mixed = far @ _compressed(values, self.of_values)
        mixed = mixed + (near_weights.unflatten(-2, (blocks, ratio)) @ values).flatten(-3, -2)
        return mixed[..., :tokens, :]


def _compressed(blocks: Tensor, taps: Tensor) -> Tensor:
    return torch.einsum("bhnrd,hrde->bhne", blocks, taps.to(blocks.dtype))


@register("poolingformer", "a fine window, then a wide one over pooled keys and values of the first level's output")
class Poolingformer(Attention):
    """Level 1: softmax over the tokens within `near` of the query -> y. Level 2: q', k', v' are projected from y, k'
    and v' are pooled over windows of `kernel` tokens every `stride`, and softmax over the pooled windows within `far`
    of the query -> z. The output is y + z.

    The distance of a window is that of its nearest token. In a causal model it is visible from its last token on; a
    query without visible windows has z = 0. Pooling ignores padding. No maps: a projection separates the levels.

    Differs from the source in the pooling, for which the source also tries convolutions with weights of the input.
    """

    rotary_ok = True
    qk_norm_ok = "its second level has queries and keys of its own, which would not be normalised"
    cross_ok = "its windows lie around a query's own position in one sequence"
    padding_ok = True
    cost, state, source = "N² C (windows as masks)", "2 (near + far / stride) C", "Zhang et al. 2021, arXiv 2105.04371"

    def __init__(
        self, geometry: Geometry, *,
        near: int = 16, far: int = 128, kernel: int = 4, stride: int = 4, pool: Literal["mean", "max"] = "mean",
    ):  # fmt: skip
        super().__init__(geometry)
        for knob, value, least in (("near", near, 0), ("far", far, 0), ("kernel", kernel, 1), ("stride", stride, 1)):
            check_range(f"attention.{knob}", value, least)
        self.near, self.far, self.kernel, self.stride, self.pool = near, far, kernel, stride, pool
        self.second = nn.Linear(geometry.dim, 3 * geometry.dim, bias=geometry.bias)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        visible = visible_keys(q, k, causal=self.geometry.causal, keep=keep)
        with torch.autocast(q.device.type, enabled=False):
            q, k, values = to_float32(q, k, v)
            position = torch.arange(k.shape[-2], device=k.device)
            band = (position - position[:, None]).abs() <= self.near
            y = (visible_softmax(scaled_logits(q, k), visible & band) @ values).to(v.dtype)
        q, k, v = (self._split(part) for part in self.second(y.transpose(1, 2).flatten(-2)).chunk(3, dim=-1))
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = to_float32(q, k, v)
            return y + self._far(q, k, v, keep).to(y.dtype)

    def state_size(self, tokens: int) -> int:
        """Near tokens, pooled windows within `far`, and the tokens of an incomplete window."""
        windows = max(0, min(tokens, self.far + self.kernel) - self.kernel) // self.stride + 1
        return 2 * self.geometry.dim * (min(tokens, self.near + 1) + windows + self.kernel - 1)

    def _far(self, q: Tensor, k: Tensor, v: Tensor, keep: Keep) -> Tensor:
        tokens = q.shape[-2]
        keep = all_kept(k) if keep is None else keep
        kept = self._windows(keep[:, None, :, None])
        k, v = self._pooled(self._windows(k), kept), self._pooled(self._windows(v), kept)
        position = torch.arange(tokens, device=q.device)[:, None]
        first = self.stride * torch.arange(k.shape[-2], device=q.device)
        last = first + self.kernel - 1
        within = torch.maximum(first - position, position - last) <= self.far
        if self.geometry.causal:
            within = within & (last <= position)
        # a window without kept tokens beyond those of the window before exists only because the row is padded
        new = kept[..., max(self.kernel - self.stride, 0) :, :].any(-2)
        new[..., :1, :] = kept[..., :1, :, :].any(-2)
        return visible_softmax(scaled_logits(q, k), within & new.mT) @ v

    def _windows(self, x: Tensor) -> Tensor:
        """(..., N, D) -> (..., windows, kernel, D), the last one filled up with zeros."""
        tokens = x.shape[-2]
        steps = -(-max(tokens - self.kernel, 0) // self.stride)
        padded = F.pad(x, (0, 0, 0, max(steps * self.stride + self.kernel - tokens, 0)))
        return padded.unfold(-2, self.kernel, self.stride).transpose(-1, -2)

    def _pooled(self, windows: Tensor, kept: Tensor) -> Tensor:
        if self.pool == "mean":
            return (windows * kept).sum(-2) / kept.sum(-2).clamp_min(1)
        most = windows.masked_fill(~kept, torch.finfo(windows.dtype).min).amax(-2)
        return most.masked_fill(~kept.any(-2), 0.0)
