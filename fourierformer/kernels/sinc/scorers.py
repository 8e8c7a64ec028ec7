"""The scores log w of a tile of pairs in plain torch, and their gradients: two classes with the same three methods.

* `Direct`: the printed formula, a few coordinates at a time. Any dtype, any range; a sine and a logarithm per query,
  key and coordinate.
* `Cosines`: float32 and moderate |z| only. A sine of differences is an inner product of sines and cosines of the
  tokens, so nearly all work becomes small matrix products (README.md of this folder derives it).
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fourierformer.kernels.sinc.reference import SERIES, SERIES_BELOW, arguments, differences

TILE = 2**20  # numbers in the largest tensor of a tile: 4 MiB in float32, so it stays in the last-level cache
# Harmonics per coordinate -> coordinates that share one matrix product. harmonics ** coordinates = 16 columns, because
# fewer cost a product as much. Not 32 harmonics: a sum of so many cosines loses more digits than the printed formula
# does, against the accuracy rule at D = 64 (README.md). With 1 there is nothing but the tail.
HARMONICS = {1: 1, 4: 2, 16: 1}
TAIL_TERMS = 5  # terms kept of the series of log sinc
TAIL_RANGE = 1.15  # ... for arguments up to here: the first term left out is (1.15 / pi)^12 / 6 = 1e-6
PAIRS_PER_TOKEN = {1: 8, 4: 50, 16: 50}  # from which the features of so many harmonics pay (measured, README.md)


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
        return self.power * sum(log_sinc(z).sum(1) for _, _, z in self._coordinates(rows, columns))

    def backward(self, rows: slice, columns: slice, dscores: Tensor) -> None:
        dscores = self.power * dscores[:, None]
        for d, difference, z in self._coordinates(rows, columns):
            slope = log_sinc_slope(z).mul_(dscores)
            self.dq[:, d, rows] += slope.sum(3, keepdim=True) * self.radius[:, d]
            self.dk[:, d, :, columns] -= slope.sum(2, keepdim=True) * self.radius[:, d]
            self.dradius[:, d] += slope.mul_(difference).sum((2, 3), keepdim=True)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.dq.squeeze(3).mT, self.dk.squeeze(2).mT, self.dradius[..., 0, 0]


# As in reference.py, but without `torch.where` and comparisons: those are not vectorised on a CPU and took three
# quarters of the time (README.md).


def log_sinc(z: Tensor) -> Tensor:
    """log |sin z / z|. At 0 the smallest number stands in for z: its sine is itself."""
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
    pairs_per_token = q.shape[1] * k.shape[1] / (q.shape[1] + k.shape[1])
    worthwhile = [n for n in HARMONICS if pairs_per_token >= PAIRS_PER_TOKEN[n]]
    if q.dtype != torch.float32 or not worthwhile:
        return None
    centre = middle(q, k)
    reach = ((q - centre).abs().amax(1) + (k - centre).abs().amax(1)) * radius.abs()
    needed = reach.max().item() / TAIL_RANGE
    return next((n for n in worthwhile if n >= needed), None)
