"""Fourier attention in plain torch: the CPU path, and any device without Triton. Needs no compiler.

Tiles of (some heads) x (some query rows) x (the keys they see) are worked through one after the other; the backward
recomputes them. The scores of a tile come from one of two classes with the same three methods:

* `Direct`: the printed formula, a few coordinates at a time. Any dtype, any range; a sine and a logarithm per query,
  key and coordinate.
* `Cosines`: float32 and moderate |z| only. A sine of differences is an inner product of sines and cosines of the
  tokens, so nearly all work becomes small matrix products (README.md of this folder derives it).
"""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fourierformer.kernels.sinc.reference import (
    SERIES,
    arguments,
    differences,
    future,
    log_sinc_slope,
    log_sinc_value,
)

TILE = 2**20  # numbers in the largest tensor of a tile: 4 MiB in float32, so it stays in the last-level cache
ROWS = (16, 32)  # query rows of a tile, at least and at most: fewer waste the products, more waste the causal half
# Harmonics per coordinate -> coordinates that share one matrix product. harmonics ** coordinates = 16 columns, because
# fewer cost a product as much. Not 32 harmonics: a sum of so many cosines loses more digits than the printed formula
# does, against the accuracy rule at D = 64 (README.md). With 1 there is nothing but the tail.
HARMONICS = {1: 1, 4: 2, 16: 1}
TAIL_TERMS = 5  # terms kept of the series of log sinc
TAIL_RANGE = 1.15  # ... for arguments up to here: the first term left out is (1.15 / pi)^12 / 6 = 1e-6
PAIRS_PER_SINE = 1.0  # pairs of tokens per sine of a feature from which the products pay (measured, README.md)


class Direct:
    """The printed formula for one chunk of heads: q (G, N, D), k (G, M, D), radius (G, D)."""

    def __init__(self, q: Tensor, k: Tensor, radius: Tensor, power: int):
        self.power = power
        # (G, D, N, 1), (G, D, 1, M), (G, D, 1, 1): keys innermost, so that every operation runs along memory.
        self.q, self.k = q.mT.contiguous()[..., None], k.mT.contiguous()[:, :, None]
        self.radius = radius[:, :, None, None]
        self.dq, self.dk, self.dradius = (torch.zeros_like(t) for t in (self.q, self.k, self.radius))

    def _coordinates(self, rows: slice, columns: slice) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(d, q - k, z) for slices d of coordinates: as many at once as fill an eighth of a tile (8 such tensors)."""
        groups, width = self.radius.shape[:2]
        step = max(1, TILE // 8 // (groups * (rows.stop - rows.start) * (columns.stop - columns.start)))
        for start in range(0, width, step):
            d = slice(start, start + step)
            difference = differences(self.q[:, d, rows], self.k[:, d, :, columns])
            yield d, difference, arguments(difference, self.radius[:, d])

    def scores(self, rows: slice, columns: slice) -> Tensor:
        return self.power * sum(log_sinc_value(z).sum(1) for _, _, z in self._coordinates(rows, columns))

    def backward(self, rows: slice, columns: slice, dscores: Tensor) -> None:
        dscores = self.power * dscores[:, None]
        for d, difference, z in self._coordinates(rows, columns):
            slope = log_sinc_slope(z).mul_(dscores)
            self.dq[:, d, rows] += slope.sum(3, keepdim=True) * self.radius[:, d]
            self.dk[:, d, :, columns] -= slope.sum(2, keepdim=True) * self.radius[:, d]
            self.dradius[:, d] += slope.mul_(difference).sum((2, 3), keepdim=True)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.dq.squeeze(3).mT, self.dk.squeeze(2).mT, self.dradius[..., 0, 0]


class Cosines:
    """The same by matrix products. With n harmonics (1, or even), x = R q, y = R k, z = x - y and w_h = (2h - 1) / n:

    sinc(z) = sin(z) / (n sin(z / n)) * sinc(z / n)
    sin(z) / (n sin(z / n)) = 2/n sum_{h=1}^{n/2} cos(w_h z) = 2/n sum_h [cos(w_h x) cos(w_h y) + sin(w_h x) sin(w_h y)]
    log sinc(z / n) = - sum_k SERIES_k (z / n)^2k, a polynomial in x and y

    With n = 4 two coordinates share a matrix product: a product of two inner products of 4 features is one of 16.
    """

    def __init__(self, q: Tensor, k: Tensor, radius: Tensor, power: int, harmonics: int, scratch: Tensor, graph: bool):
        self.power, self.harmonics = power, harmonics
        self.scratch, self.spare = scratch.split(2 * scratch.numel() // 3)
        self.leaves = tuple(t.detach().requires_grad_() for t in (q, k, radius))
        centre = middle(q, k).detach()  # only differences count, and powers of large numbers would lose digits
        with torch.set_grad_enabled(graph):  # features are per token: autograd does their chain rule at little cost
            x = (self.leaves[0] - centre) * (self.leaves[2][:, None] / harmonics)
            y = (self.leaves[1] - centre) * (self.leaves[2][:, None] / harmonics)
            self.features = [tail_coefficients(x) @ powers(x), powers(y)]
            self.features = [f.unflatten(2, (x.shape[2], -1)).flatten(1, 2) for f in self.features]  # (G, powers D, T)
            if harmonics > 1:
                # Angles in double precision: rounded to float32 they would move every zero of the sine by 1e-6.
                wide = torch.float32 if q.device.type == "mps" else torch.float64  # which has no other
                q, k, radius = (t.to(wide) for t in self.leaves)
                x = (q - centre) * (radius[:, None] / harmonics)
                y = (k - centre) * (radius[:, None] / harmonics)
                scale = (2 / harmonics) ** HARMONICS[harmonics]
                self.features += [waves(x, harmonics) * scale, waves(y, harmonics)]
        self.values = [feature.detach() for feature in self.features]
        self.sums: list[Tensor] = []

    def scores(self, rows: slice, columns: slice) -> Tensor:
        x_tail, y_tail, *_ = self.values
        scores = x_tail[:, :, rows].mT @ y_tail[:, :, columns]
        if self.harmonics > 1:
            scores += self._log_factors(self.values[2][:, :, rows], self.values[3][:, :, columns])
        return scores.mul_(self.power)

    def _log_factors(self, x: Tensor, y: Tensor) -> Tensor:
        """sum_d log |sin(z) / (n sin(z / n))|; keeps the factors, (G, D or D / 2, rows, columns), for `backward`."""
        groups, width, rows, _ = x.shape
        shape = (groups * width, rows, y.shape[2])
        factors = torch.bmm(x.flatten(0, 1), y.flatten(0, 1).mT, out=self.scratch[: math.prod(shape)].view(shape))
        self.factors = factors.view(groups, width, *shape[1:])
        # One logarithm per four factors: four of 1e-9 (below is rounding noise) still fit float32.
        half, quarter = width // 2, width // 4
        spare = self.spare[: math.prod(shape) // 2].view(groups, half, *shape[1:])
        product = torch.mul(self.factors[:, :half], self.factors[:, half:], out=spare)
        product = product[:, :quarter].mul_(product[:, quarter:])
        return product.abs_().log_().sum(1)

    def backward(self, rows: slice, columns: slice, dscores: Tensor) -> None:
        """Adds this tile to the gradients of the features; `scores` of the same tile ran just before."""
        if not self.sums:
            self.sums = [torch.zeros_like(value) for value in self.values]
        x_tail, y_tail, *_ = self.values
        dscores = dscores * self.power
        self.sums[0][:, :, rows] += y_tail[:, :, columns] @ dscores.mT
        self.sums[1][:, :, columns] += x_tail[:, :, rows] @ dscores
        if self.harmonics > 1:
            # d log |factor| = d factor / factor. A factor of exactly 0 has weight 0: 0 / 0 stands for 0.
            ratio = torch.div(dscores[:, None], self.factors, out=self.factors).nan_to_num_(0.0, 0.0, 0.0)
            self.sums[2][:, :, rows] += ratio @ self.values[3][:, :, columns]
            self.sums[3][:, :, columns] += ratio.mT @ self.values[2][:, :, rows]

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.autograd.grad(self.features, self.leaves, self.sums)


def middle(q: Tensor, k: Tensor) -> Tensor:
    """Per head and coordinate, the middle of the range that queries and keys cover: (G, 1, D)."""
    low = torch.minimum(q.amin(1, keepdim=True), k.amin(1, keepdim=True))
    return low + 0.5 * (torch.maximum(q.amax(1, keepdim=True), k.amax(1, keepdim=True)) - low)


def waves(u: Tensor, harmonics: int) -> Tensor:
    """cos, sin of (2h - 1) u, h = 1 .. harmonics / 2 (a power of 2), in float32: (G, T, D) -> (G, D, T, harmonics).

    From exp(iu) and its squares in the precision of u: 1, then 1 3, then 1 3 5 7, ... Where two coordinates share a
    product, all products of one's features with the other's: (G, D / 2, T, harmonics^2).
    """
    u = torch.nn.functional.pad(u, (0, padded(u.shape[2], harmonics) - u.shape[2])).mT.unsqueeze(-1)
    step = torch.complex(u.cos(), u.sin())
    odd = step.to(torch.complex64)
    while odd.shape[-1] < harmonics // 2:
        step = step * step
        odd = torch.cat((odd, odd * step.to(torch.complex64)), -1)
    features = torch.view_as_real(odd).flatten(-2)
    if HARMONICS[harmonics] == 1:
        return features
    one, other = features.chunk(2, dim=1)
    return (one.unsqueeze(-1) * other.unsqueeze(-2)).flatten(-2)


def padded(width: int, harmonics: int) -> int:
    """Coordinates rounded up so that their factors come in fours: cos(0) = 1 changes nothing."""
    unit = 4 * HARMONICS[harmonics]
    return -(-width // unit) * unit


def powers(u: Tensor) -> Tensor:
    """1, u, u^2, ... u^(2 TAIL_TERMS): (G, T, D) -> (G, 2 TAIL_TERMS + 1, D T), whole rows: nothing is strided."""
    u = u.mT.flatten(1)
    columns = [torch.ones_like(u)]
    for _ in range(2 * TAIL_TERMS):
        columns.append(columns[-1] * u)
    return torch.stack(columns, 1)


def tail_coefficients(like: Tensor) -> Tensor:
    """C with (C @ powers(a))^T powers(b) = - sum_k SERIES_k (a - b)^2k, by the binomial theorem."""
    size = 2 * TAIL_TERMS + 1
    rows = [[0.0] * size for _ in range(size)]
    for k in range(1, TAIL_TERMS + 1):
        for j in range(2 * k + 1):
            rows[j][2 * k - j] = -SERIES[k - 1] * math.comb(2 * k, j) * (-1) ** j
    return torch.tensor(rows, dtype=like.dtype, device=like.device)


def choose_harmonics(q: Tensor, k: Tensor, radius: Tensor) -> int | None:
    """How many harmonics these numbers need; None where `Direct` is the better choice."""
    # The features cost `harmonics` sines per token and coordinate, the printed formula one per pair and coordinate.
    worth = q.shape[1] * k.shape[1] / (PAIRS_PER_SINE * (q.shape[1] + k.shape[1]))
    affordable = [n for n in HARMONICS if n <= worth]
    if q.dtype != torch.float32 or not affordable:
        return None
    centre = middle(q, k)
    reach = ((q - centre).abs().amax(1) + (k - centre).abs().amax(1)) * radius.abs()
    needed = reach.max().item() / TAIL_RANGE
    return next((n for n in affordable if n >= needed), None)


class Tiles:
    """How the work is cut: chunks of heads, for each a scorer, and blocks of query rows with the keys they see."""

    def __init__(self, q: Tensor, k: Tensor, radius: Tensor, power: int, causal: bool, graph: bool):
        self.q, self.k, self.radius, self.power, self.causal, self.graph = q, k, radius, power, causal, graph
        self.harmonics = choose_harmonics(q, k, radius)
        n = self.harmonics
        per_pair = 8 if n is None else padded(q.shape[2], n) // HARMONICS[n]  # factors of Cosines
        per_row = per_pair * k.shape[1]
        self.rows = min(q.shape[1], max(ROWS[0], min(ROWS[1], TILE // per_row)))
        self.heads = min(q.shape[0], max(1, TILE // (per_row * self.rows)))
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
                    weights = scores.sub_(top).exp_()
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
                    weights = tiles.scores(scorer, rows, columns, mask).sub_(log_total[heads, rows, None]).exp_()
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
