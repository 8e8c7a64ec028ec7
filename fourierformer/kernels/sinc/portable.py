"""Fourier attention in plain torch, for CPUs without a C++ compiler and any device without Triton.

The printed formula on tiles of (some heads) x (some query rows) x (the keys they see), one after the other; the
backward recomputes them. A sine and a logarithm per query, key and coordinate, so many times slower than `compiled`.
"""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fourierformer.kernels.sinc.reference import (
    SERIES,
    SERIES_BELOW,
    arguments,
    blank_left_out,
    differences,
    differentiable_once,
    future,
)

TILE = 2**20  # numbers in all tensors of a tile together: in float32 4 MiB, which stay in the last-level cache
ROWS = 32  # query rows of a tile at most: more waste the half that causal attention does not see


class Tiles:
    """The tiles of a call: chunks of heads, and in each chunk blocks of query rows with the keys they see."""

    def __init__(self, q: Tensor, k: Tensor, radius: Tensor, keep: Tensor | None, power: int, causal: bool):
        # (G, D, N, 1), (G, D, 1, M), (G, D, 1, 1): keys innermost, so that every operation runs along memory.
        self.q, self.k = q.mT.contiguous()[..., None], k.mT.contiguous()[:, :, None]
        self.radius = radius[:, :, None, None]
        self.keep, self.power, self.causal = keep, power, causal
        self.heads = max(1, TILE // 8 // (ROWS * k.shape[1]))

    def __iter__(self) -> Iterator[tuple[slice, slice, slice]]:
        """(heads, rows, columns); rows that see no key are left out."""
        (groups, _, queries, _), keys = self.q.shape, self.k.shape[3]
        offset = keys - queries if self.causal else keys
        for start in range(0, groups, self.heads):
            heads = slice(start, start + self.heads)
            for first in range(max(0, -offset), queries, ROWS):
                rows = slice(first, min(first + ROWS, queries))
                yield heads, rows, slice(0, min(keys, rows.stop + offset))

    def coordinates(self, heads: slice, rows: slice, columns: slice) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(d, q - k, z) for slices d of coordinates: as many at once as fill an eighth of a tile (8 such tensors)."""
        width = self.q.shape[1]
        pairs = len(self.q[heads]) * (rows.stop - rows.start) * (columns.stop - columns.start)
        step = max(1, TILE // 8 // pairs)
        for start in range(0, width, step):
            d = slice(start, start + step)
            difference = differences(self.q[heads, d, rows], self.k[heads, d, :, columns])
            yield d, difference, arguments(difference, self.radius[heads, d])

    def scores(self, heads: slice, rows: slice, columns: slice) -> Tensor:
        parts = (log_sinc(z).sum(1) for _, _, z in self.coordinates(heads, rows, columns))
        scores = self.power * sum(parts, start=next(parts))
        if self.causal:
            scores.masked_fill_(future(rows.stop - rows.start, columns.stop, scores.device), -math.inf)
        if self.keep is not None:
            scores.masked_fill_(~self.keep[heads, None, columns], -math.inf)
        return scores


# As in reference.py, but without `torch.where` and comparisons: those are not vectorised on a CPU and took three
# quarters of the time (README.md).


def log_sinc(z: Tensor) -> Tensor:
    """log |sin z / z|. 0 is replaced by the smallest number, whose sine is itself: log 1."""
    a = z.abs().clamp_min_(torch.finfo(z.dtype).tiny)
    return torch.sin(a).div_(a).abs_().log_()


def log_sinc_slope(z: Tensor) -> Tensor:
    """cot z - 1/z; its series below SERIES_BELOW; 0 where the sine is 0."""
    a = z.abs()
    is_far = (a - SERIES_BELOW).sign_().clamp_min_(0)
    near = a.clamp_max(SERIES_BELOW)
    terms = len(SERIES) if z.dtype == torch.float64 else 5  # next: 6 / pi^12 * 0.5^10 = 6e-9 of the first
    square, series = near * near, torch.full_like(near, -2 * terms * SERIES[terms - 1])
    for k in range(terms - 1, 0, -1):
        series.mul_(square).sub_(2 * k * SERIES[k - 1])
    far = a.clamp_min_(SERIES_BELOW)
    closed = torch.tan(far).reciprocal_().sub_(far.reciprocal_()).nan_to_num_(math.nan, 0.0, 0.0)
    return series.mul_(near).lerp_(closed, is_far).mul_(z.sign())  # lerp by exactly 0 or 1 takes one of the two


def weights_of(scores: Tensor) -> Tensor:
    """exp of the scores, in place, and 0 below 1e-30 (float32). A CPU takes many times longer for subnormal numbers,
    and a sharp kernel has many of them: without this threshold a backward took 2.5 times as long.
    """
    return torch.threshold_(scores, 0.8 * math.log(torch.finfo(scores.dtype).tiny), -math.inf).exp_()


@contextlib.contextmanager
def full_precision(device: torch.device):
    """No autocast, and no float32 products in reduced precision: errors of many factors multiply up."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class _SincAttention(torch.autograd.Function):
    """q (G, N, D), k (G, M, D), v (G, M, Dv), radius (G, D), all float32 or all float64; keep (G, M) or None."""

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, power: int, eps: float, causal: bool
    ) -> Tensor:
        output = q.new_zeros(*q.shape[:2], v.shape[2])
        log_total = q.new_full(q.shape[:2], math.inf)  # rows without any weight keep this: exp(score - inf) = 0
        log_eps = math.log(eps) if eps > 0 else -math.inf
        with full_precision(q.device):
            tiles = Tiles(q, k, radius, keep, power, causal)
            for heads, rows, columns in tiles:
                scores = tiles.scores(heads, rows, columns)
                top = scores.amax(-1, keepdim=True).clamp_min(log_eps)
                top.masked_fill_(top == -math.inf, 0.0)
                weights = weights_of(scores.sub_(top))
                total = weights.sum(-1, keepdim=True) + torch.exp(log_eps - top)
                empty = total == 0
                output[heads, rows] = (weights @ v[heads, columns]) / total.masked_fill(empty, 1.0)
                log_total[heads, rows] = (top + total.log()).masked_fill(empty, math.inf).squeeze(-1)
        ctx.save_for_backward(q, k, v, radius, keep, output, log_total)
        ctx.power, ctx.causal = power, causal
        return output

    @staticmethod
    def backward(ctx, doutput: Tensor):
        q, k, v, radius, keep, output, log_total = ctx.saved_tensors
        with torch.no_grad(), full_precision(q.device):
            along = (doutput * output).sum(-1, keepdim=True)
            tiles = Tiles(q, k, radius, keep, ctx.power, ctx.causal)
            dv, *sums = (torch.zeros_like(t) for t in (v, tiles.q, tiles.k, tiles.radius))
            for heads, rows, columns in tiles:
                weights = weights_of(tiles.scores(heads, rows, columns).sub_(log_total[heads, rows, None]))
                dv[heads, columns] += weights.mT @ doutput[heads, rows]
                dweights = doutput[heads, rows] @ v[heads, columns].mT
                dscores = dweights.sub_(along[heads, rows]).mul_(weights).mul_(ctx.power)
                _add_slopes(sums, tiles, (heads, rows, columns), dscores[:, None])
        dq, dk, dradius = sums
        gradients = dq.squeeze(3).mT, dk.squeeze(2).mT, dv, dradius[..., 0, 0]
        return *differentiable_once(gradients, q, k, v, radius, doutput), None, None, None, None


def _add_slopes(sums: list[Tensor], tiles: Tiles, tile: tuple[slice, slice, slice], dscores: Tensor) -> None:
    """Adds a tile to the gradients of q, k and radius, in the shapes that they have in `tiles`."""
    heads, rows, columns = tile
    dq, dk, dradius = sums
    for d, difference, z in tiles.coordinates(*tile):
        slope = log_sinc_slope(z).mul_(dscores)
        dq[heads, d, rows] += slope.sum(3, keepdim=True) * tiles.radius[heads, d]
        dk[heads, d, :, columns] -= slope.sum(2, keepdim=True) * tiles.radius[heads, d]
        dradius[heads, d] += slope.mul_(difference).sum((2, 3), keepdim=True)


@torch._disable_dynamo
def sinc_attention_portable(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, *, power: int, eps: float, causal: bool, keep: Tensor | None = None
) -> Tensor:
    """Same contract as the reference. Memory beyond inputs and output: a tile, and a few numbers per token."""
    batch, heads, _, width = q.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = radius.to(dtype).expand(heads, width).expand(batch, heads, width)
    if keep is not None:
        k, v = blank_left_out(keep, k, v)
    flat = [t.to(dtype).flatten(0, 1) for t in (q, k, v)]
    kept = None if keep is None else keep.repeat_interleave(heads, 0)
    output = _SincAttention.apply(*flat, scale.flatten(0, 1), kept, power, eps, causal)
    return output.unflatten(0, (batch, heads)).to(q.dtype)
