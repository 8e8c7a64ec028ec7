"""Fourier attention in plain torch: for any device, and the only backend with masks of pairs and with dropout.

The printed formula on tiles of (some heads) x (some query rows) x (the keys they see), one after the other; the
backward recomputes them. A sine and a logarithm per query, key and coordinate, so many times slower than `compiled`.
"""

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fourierformer.kernels.first_derivatives import refuse_second_derivative
from fourierformer.kernels.sinc.operators import register_vmap
from fourierformer.kernels.sinc.reference import SERIES, SERIES_BELOW, arguments, blank_left_out, differences, future

TILE = 2**20  # numbers in all tensors of a tile together: in float32 4 MiB, which stay in the last-level cache
ROWS = 32  # query rows of a tile at most: more waste the half that causal attention does not see

# The reference's formulas without `torch.where` and comparisons: not vectorised on a CPU, those took 3/4 of the time.


def log_sinc(z: Tensor) -> Tensor:
    """log |sin z / z|. 0 is replaced by the smallest normal number, which is its own sine: log 1."""
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
    """exp of the scores, in place, and 0 below 1e-30 (float32): subnormal numbers slow a CPU down, and a sharp kernel
    has many of them. Without this threshold a backward took 2.5 times as long."""
    return torch.threshold_(scores, 0.8 * math.log(torch.finfo(scores.dtype).tiny), -math.inf).exp_()


@dataclass(frozen=True)
class Pairs:
    """Pairs of a query and a key that take part, and the factors of their weights."""

    causal: bool
    keep: Tensor | None  # (B, M), bool: keys that any query may see
    mask: Tensor | None  # (B, H, N, M), bool, or float and then added to the logarithms of the weights
    dropout: float  # the probability that a normalised weight is replaced by 0; the others grow by 1 / (1 - p)
    seed: Tensor | None  # int64, selects those weights


class Tiles:
    """The tiles of a call: chunks of heads, and in each chunk blocks of query rows with the keys they see."""

    def __init__(self, q: Tensor, k: Tensor, radius: Tensor, power: int, pairs: Pairs):
        self.power, self.pairs, self.heads_per_row = power, pairs, q.shape[1]
        # (G, D, N, 1), (G, D, 1, M), (G, D, 1, 1): keys innermost, so that every operation runs along memory.
        q, k = q.flatten(0, 1), k.flatten(0, 1)
        self.q, self.k = q.mT.contiguous()[..., None], k.mT.contiguous()[:, :, None]
        self.radius = radius.flatten(0, 1)[:, :, None, None]
        self.heads = max(1, TILE // 8 // (ROWS * k.shape[1]))

    def __iter__(self) -> Iterator[tuple[slice, slice, slice]]:
        """(heads, rows, columns) without rows that see no key."""
        (groups, _, queries, _), keys = self.q.shape, self.k.shape[3]
        offset = keys - queries if self.pairs.causal else keys
        for start in range(0, groups, self.heads):
            heads = slice(start, start + self.heads)
            for first in range(max(0, -offset), queries, ROWS):
                rows = slice(first, min(first + ROWS, queries))
                yield heads, rows, slice(0, min(keys, rows.stop + offset))

    def coordinates(self, heads: slice, rows: slice, columns: slice) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(d, q - k, z) for slices d of coordinates, each of which fills an eighth of a tile (8 such tensors)."""
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
        if self.pairs.causal:
            scores.masked_fill_(future(rows.stop - rows.start, columns.stop, scores.device), -math.inf)
        if self.pairs.keep is not None:
            row, _ = self._row_and_head(heads)
            scores.masked_fill_(~self.pairs.keep[row, None, columns], -math.inf)
        if self.pairs.mask is not None:
            row, head = self._row_and_head(heads)
            mask = self.pairs.mask[:, :, rows, columns][row, head]
            scores = scores.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else scores.add_(mask)
        return scores

    def _row_and_head(self, heads: slice) -> tuple[Tensor, Tensor]:
        """Index in the batch, and head within it, of heads counted over the whole batch."""
        numbers = torch.arange(*heads.indices(len(self.q)), device=self.q.device)
        return numbers // self.heads_per_row, numbers % self.heads_per_row

    def dropped(self, number: int, weights: Tensor) -> Tensor:
        """The weights of tile `number` after dropout, with the same draw in every call."""
        p, seed = self.pairs.dropout, self.pairs.seed
        if p == 0 or seed is None:
            return weights
        generator = torch.Generator(weights.device).manual_seed(int(seed) + number)
        stays = torch.rand(weights.shape, device=weights.device, generator=generator) >= p
        return weights * stays / max(1 - p, torch.finfo(weights.dtype).tiny)


_lock = threading.Lock()
_before: dict[str, list[str]] = {"cuda": [], "mkldnn": []}  # for each call inside, the setting before the first one


@contextlib.contextmanager
def full_precision(device: torch.device):
    """Disable autocast and float32 products in reduced precision: errors of many factors multiply up.

    Threads share torch's setting: the first of several calls at a time changes it, the last one restores it. A setting
    that is equal to the general one counts as inherited from it.
    """
    # the backend's setting, because torch refuses to read the general one once a user has set a backend's
    name = "cuda" if device.type == "cuda" else "mkldnn"
    matmul, before = getattr(torch.backends, name).matmul, _before[name]
    with _lock:
        before.append(before[0] if before else matmul.fp32_precision)
        matmul.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        with _lock:
            restored = before.pop()
            if not before:
                matmul.fp32_precision = "none"  # the general setting, which later changes of it then still reach
                if matmul.fp32_precision != restored:
                    matmul.fp32_precision = restored


@torch.library.custom_op("fourierformer::sinc_attention_portable", mutates_args=())
def sinc_forward(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, mask: Tensor | None, seed: Tensor | None,
    power: int, eps: float, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Forward pass: q, k, v (B, H, N or M, K), all float32 or all float64, radius (B, H, D), and as in `Pairs` ->
    output, and the logarithm of each row's sum of weights (B, H, N)."""
    output, log_total = _empty_results(q, v)
    values, out, log_totals = v.flatten(0, 1), output.flatten(0, 1), log_total.flatten(0, 1)
    log_eps = math.log(eps) if eps > 0 else -math.inf
    out.zero_()
    log_totals.fill_(math.inf)  # rows without any weight keep this: exp(score - inf) = 0
    if 0 in (*q.shape, k.shape[2]):  # in an exported graph: `sinc_attention` returns before
        return output, log_total
    with full_precision(q.device):
        tiles = Tiles(q, k, radius, power, Pairs(causal, keep, mask, dropout, seed))
        for number, (heads, rows, columns) in enumerate(tiles):
            scores = tiles.scores(heads, rows, columns)
            top = scores.amax(-1, keepdim=True).clamp_min(log_eps)
            top.masked_fill_(top == -math.inf, 0.0)
            weights = weights_of(scores.sub_(top))
            total = weights.sum(-1, keepdim=True) + torch.exp(log_eps - top)
            empty = total == 0
            weights = tiles.dropped(number, weights)
            out[heads, rows] = (weights @ values[heads, columns]) / total.masked_fill(empty, 1.0)
            log_totals[heads, rows] = (top + total.log()).masked_fill(empty, math.inf).squeeze(-1)
    return output, log_total


def _empty_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])


@sinc_forward.register_fake
def _(q, k, v, radius, keep, mask, seed, power, eps, causal, dropout):
    return _empty_results(q, v)


@torch.library.custom_op("fourierformer::sinc_attention_portable_backward", mutates_args=())
def sinc_backward(
    doutput: Tensor, q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, mask: Tensor | None,
    seed: Tensor | None, output: Tensor, log_total: Tensor, power: int, causal: bool, dropout: float, of_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, radius, and of a float mask (an empty tensor unless `of_mask`)."""
    if 0 in (*q.shape, k.shape[2]):
        dq, dk, dv, dradius = (t.new_zeros(t.shape) for t in (q, k, v, radius))
        return dq, dk, dv, dradius, _empty_mask_gradient(q, k, of_mask).zero_()
    with full_precision(q.device):
        along = (doutput * output).sum(-1, keepdim=True).flatten(0, 1)
        doutputs, values, log_totals = doutput.flatten(0, 1), v.flatten(0, 1), log_total.flatten(0, 1)[..., None]
        tiles = Tiles(q, k, radius, power, Pairs(causal, keep, mask, dropout, seed))
        dv, *sums = (torch.zeros_like(t) for t in (values, tiles.q, tiles.k, tiles.radius))
        dmask = _empty_mask_gradient(q, k, of_mask).zero_()
        for number, (heads, rows, columns) in enumerate(tiles):
            weights = weights_of(tiles.scores(heads, rows, columns).sub_(log_totals[heads, rows]))
            dv[heads, columns] += tiles.dropped(number, weights).mT @ doutputs[heads, rows]
            dweights = tiles.dropped(number, doutputs[heads, rows] @ values[heads, columns].mT)
            dscores = dweights.sub_(along[heads, rows]).mul_(weights)
            if of_mask:
                dmask.flatten(0, 1)[heads, rows, columns] = dscores
            _add_slopes(sums, tiles, (heads, rows, columns), dscores.mul_(power)[:, None])
    dq, dk, dradius = sums
    gradients = dq.squeeze(3).mT, dk.squeeze(2).mT, dv, dradius[..., 0, 0]
    dq, dk, dv, dradius = (g.unflatten(0, q.shape[:2]).contiguous() for g in gradients)
    return dq, dk, dv, dradius, dmask


def _empty_mask_gradient(q: Tensor, k: Tensor, of_mask: bool) -> Tensor:
    return q.new_empty(*q.shape[:3], k.shape[2]) if of_mask else q.new_empty(q.shape[0], 0)


@sinc_backward.register_fake
def _(doutput, q, k, v, radius, keep, mask, seed, output, log_total, power, causal, dropout, of_mask):
    return *(t.new_empty(t.shape) for t in (q, k, v, radius)), _empty_mask_gradient(q, k, of_mask)


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.power, _, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, doutput, _dlog_total):
    of_mask = ctx.needs_input_grad[5]
    *gradients, dmask = sinc_backward(doutput, *ctx.saved_tensors, ctx.power, ctx.causal, ctx.dropout, of_mask)
    return *gradients, None, dmask if of_mask else None, None, None, None, None, None


sinc_forward.register_autograd(_differentiate, setup_context=_save)

sinc_backward.register_autograd(refuse_second_derivative)
register_vmap(sinc_forward)
register_vmap(sinc_backward)


def _add_slopes(sums: list[Tensor], tiles: Tiles, tile: tuple[slice, slice, slice], dscores: Tensor) -> None:
    """Add a tile to the gradients of q, k and radius, which have the shapes of `tiles`."""
    heads, rows, columns = tile
    dq, dk, dradius = sums
    for d, difference, z in tiles.coordinates(*tile):
        slope = log_sinc_slope(z).mul_(dscores)
        dq[heads, d, rows] += slope.sum(3, keepdim=True) * tiles.radius[heads, d]
        dk[heads, d, :, columns] -= slope.sum(2, keepdim=True) * tiles.radius[heads, d]
        dradius[heads, d] += slope.mul_(difference).sum((2, 3), keepdim=True)


def sinc_attention_portable(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, *, power: int, eps: float, causal: bool,
    keep: Tensor | None = None, mask: Tensor | None = None, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Fourier attention with the contract of the reference, a mask that broadcasts to (B, H, N, M), and dropout, both
    as in `Pairs`.

    Memory beyond inputs and output: a tile, a few numbers per token, and the gradient of a mask that needs one.
    """
    batch, heads, queries, width = q.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = radius.to(dtype).expand(heads, width).expand(batch, heads, width)
    if keep is not None:
        k, v = blank_left_out(keep, k, v)
    if mask is not None:
        mask = (mask if mask.dtype == torch.bool else mask.to(dtype)).expand(batch, heads, queries, k.shape[2])
    seed = torch.randint(2**62, ()) if dropout else None
    tensors = [*(t.to(dtype) for t in (q, k, v)), scale, keep, mask, seed]
    return sinc_forward(*tensors, power, eps, causal, dropout)[0].to(q.dtype)
