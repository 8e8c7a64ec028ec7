"""Fourier attention in plain torch: the CPU path, and any device without Triton. Needs no compiler.

Tiles of (some heads) x (some query rows) x (the keys they see) are worked through one after the other; the backward
recomputes them. The scores of a tile come from one of the classes of scorers.py.
"""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fourierformer.kernels.sinc import scorers
from fourierformer.kernels.sinc.reference import future
from fourierformer.kernels.sinc.scorers import Cosines, Direct

ROWS = (16, 32)  # query rows of a tile, at least and at most: fewer waste the products, more waste the causal half


class Tiles:
    """How the work is cut: chunks of heads, for each a scorer, and blocks of query rows with the keys they see."""

    def __init__(self, q: Tensor, k: Tensor, radius: Tensor, power: int, causal: bool, graph: bool):
        self.q, self.k, self.radius, self.power, self.causal, self.graph = q, k, radius, power, causal, graph
        self.harmonics = scorers.choose_harmonics(q, k, radius)
        n = self.harmonics
        per_pair = 8 if n is None else scorers.padded(q.shape[2], n) // scorers.HARMONICS[n]  # factors of Cosines
        per_row = per_pair * k.shape[1]
        self.rows = min(q.shape[1], max(ROWS[0], min(ROWS[1], scorers.TILE // per_row)))
        self.heads = min(q.shape[0], max(1, scorers.TILE // (per_row * self.rows)))
        # Allocated once: fresh memory for every tile would cost more than the products that fill it (README.md).
        self.scratch = q.new_empty(0 if self.harmonics is None else 3 * (self.heads * per_row * self.rows // 2))

    def chunks(self) -> Iterator[tuple[slice, Direct | Cosines]]:
        for start in range(0, self.q.shape[0], self.heads):
            heads = slice(start, start + self.heads)
            inputs = self.q[heads], self.k[heads], self.radius[heads], self.power
            if self.harmonics is None:
                yield heads, Direct(*inputs)
            else:
                yield heads, Cosines(*inputs, self.harmonics, self.scratch, self.graph)

    def blocks(self) -> Iterator[tuple[slice, slice, Tensor | None]]:
        """(rows, columns, mask); rows that see no key are left out."""
        queries, keys = self.q.shape[1], self.k.shape[1]
        offset = keys - queries if self.causal else keys
        first = max(0, -offset) if self.causal else 0
        for start in range(first, queries, self.rows):
            rows = slice(start, min(start + self.rows, queries))
            columns = slice(0, min(keys, rows.stop + offset))
            yield rows, columns, self._mask(rows, columns) if self.causal else None

    def _mask(self, rows: slice, columns: slice) -> Tensor:
        return future(rows.stop - rows.start, columns.stop, self.q.device)

    def scores(self, scorer: Direct | Cosines, rows: slice, columns: slice, mask: Tensor | None) -> Tensor:
        scores = scorer.scores(rows, columns)
        return scores if mask is None else scores.masked_fill_(mask, -math.inf)


def weights_of(scores: Tensor) -> Tensor:
    """exp, in place, and 0 below 1e-30 (float32). A CPU takes many times longer for numbers too small to be normal, and
    a sharp kernel is full of them: without this, and with sums of such weights, a backward took 2.5 times as long.
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
    """q (G, N, D), k (G, M, D), v (G, M, Dv), radius (G, D), all float32 or all float64."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, radius: Tensor, power: int, eps: float, causal: bool) -> Tensor:
        output = q.new_zeros(*q.shape[:2], v.shape[2])
        log_total = q.new_full(q.shape[:2], math.inf)  # rows without any weight keep this: exp(score - inf) = 0
        log_eps = math.log(eps) if eps > 0 else -math.inf
        with full_precision(q.device):
            tiles = Tiles(q, k, radius, power, causal, graph=False)
            for heads, scorer in tiles.chunks():
                for rows, columns, mask in tiles.blocks():
                    scores = tiles.scores(scorer, rows, columns, mask)
                    top = scores.amax(-1, keepdim=True).clamp_min(log_eps)
                    top.masked_fill_(top == -math.inf, 0.0)
                    weights = weights_of(scores.sub_(top))
                    total = weights.sum(-1, keepdim=True) + torch.exp(log_eps - top)
                    empty = total == 0
                    output[heads, rows] = (weights @ v[heads, columns]) / total.masked_fill(empty, 1.0)
                    log_total[heads, rows] = (top + total.log()).masked_fill(empty, math.inf).squeeze(-1)
        ctx.save_for_backward(q, k, v, radius, output, log_total)
        ctx.power, ctx.causal = power, causal
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, doutput: Tensor):
        q, k, v, radius, output, log_total = ctx.saved_tensors
        dq, dk, dv, dradius = (torch.zeros_like(t) for t in (q, k, v, radius))
        with full_precision(q.device):
            along = (doutput * output).sum(-1, keepdim=True)
            tiles = Tiles(q, k, radius, ctx.power, ctx.causal, graph=True)
            for heads, scorer in tiles.chunks():
                for rows, columns, mask in tiles.blocks():
                    weights = weights_of(tiles.scores(scorer, rows, columns, mask).sub_(log_total[heads, rows, None]))
                    dv[heads, columns] += weights.mT @ doutput[heads, rows]
                    dweights = doutput[heads, rows] @ v[heads, columns].mT
                    scorer.backward(rows, columns, dweights.sub_(along[heads, rows]).mul_(weights))
                dq[heads], dk[heads], dradius[heads] = scorer.gradients()
        return dq, dk, dv, dradius, None, None, None


@torch.compiler.disable
def sinc_attention_portable(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, *, power: int, eps: float, causal: bool
) -> Tensor:
    """Same contract as the reference. Memory beyond inputs and output is bounded: see README.md."""
    batch, heads, _, width = q.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = radius.to(dtype).expand(heads, width).expand(batch, heads, width)
    flat = [t.to(dtype).flatten(0, 1) for t in (q, k, v)]
    output = _SincAttention.apply(*flat, scale.flatten(0, 1), power, eps, causal)
    return output.unflatten(0, (batch, heads)).to(q.dtype)
