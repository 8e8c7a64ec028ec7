"""The arithmetic of the fused kernels on a tensor core, in NumPy: what Triton's interpreter does not show.

A tensor core cuts operands in TF32 instead of rounding them. It aligns a few products and the sum so far to the largest
of them, with few guard bits, and cuts what lies below (Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021).
"""

from dataclasses import dataclass

import numpy as np

NODES, SINES = 8, 8


@dataclass(frozen=True)
class Unit:
    """`block`: products of float16 that are added at once, half as many of TF32; `guard`: bits kept below the sum's."""

    name: str
    block: int
    guard: int


HOPPER = Unit("hopper", 16, 2)
AMPERE = Unit("ampere", 8, 1)
EXACT = None  # sums in float64, rounded to float32: as in Triton's interpreter


def cut_to_tf32(x: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(x, np.float32).view(np.int32) & ~0x1FFF).view(np.float32)


def round_to_tf32(x: np.ndarray) -> np.ndarray:
    """To nearest, ties away from 0, as cvt.rna.tf32."""
    return ((np.ascontiguousarray(x, np.float32).view(np.int32) + 0x1000) & ~0x1FFF).view(np.float32)


def product(a: np.ndarray, b: np.ndarray, unit: Unit | None, block: int, total: np.ndarray | None = None) -> np.ndarray:
    """total + a b' in float32 by a unit that adds `block` products at once."""
    total = np.zeros((len(a), len(b))) if total is None else total.astype(np.float64)
    for start in range(0, a.shape[1], block):
        part = slice(start, start + block)
        terms = a[:, None, part].astype(np.float64) * b[None, :, part]
        if unit is EXACT:
            total = (total + terms.sum(-1)).astype(np.float32).astype(np.float64)
            continue
        largest = np.maximum(np.abs(terms).max(-1), np.abs(total))
        place = 2.0 ** (np.floor(np.log2(np.where(largest == 0, 1, largest))) - 23 - unit.guard)
        total = cut((np.trunc(terms / place[..., None]).sum(-1) + np.trunc(total / place)) * place)
    return total.astype(np.float32)


def cut(x: np.ndarray) -> np.ndarray:
    """float64 -> the next float32 towards 0, as float64."""
    near = x.astype(np.float32)
    beyond = np.abs(near.astype(np.float64)) > np.abs(x)
    near[beyond] = np.nextafter(near[beyond], np.float32(0))
    return near.astype(np.float64)


def values_product(a: np.ndarray, b: np.ndarray, precise: bool, unit: Unit | None) -> np.ndarray:
    """a b of float32 numbers by TF32 products: one of cut operands, or three of two parts each."""
    block = unit.block // 2 if unit else 8
    if not precise:
        return product(cut_to_tf32(a), cut_to_tf32(b).T, unit, block)
    a_high, b_high = round_to_tf32(a), round_to_tf32(b)
    a_low, b_low = round_to_tf32(a - a_high), round_to_tf32(b - b_high)
    total = None
    for x, y in ((a_low, b_high), (a_high, b_low), (a_high, b_high)):
        total = product(x, y.T, unit, block, total)
    return total


class Features:
    """sqrt(w) cos(t R x) and sqrt(w) sin(t R x) in float16, (tokens, coordinates, 16), and their rounding errors."""

    def __init__(self, x: np.ndarray, radius: float, precise: bool):
        nodes, weights = (half[NODES:] for half in np.polynomial.legendre.leggauss(2 * NODES))
        angles = (radius * x.astype(np.float64))[..., None] * nodes
        exact = np.sqrt(weights) * np.stack([np.cos(angles), np.sin(angles)], -2)
        self.precise, self.nodes = precise, nodes
        self.high, self.low = two_parts(exact.reshape(*x.shape, 2 * NODES).astype(np.float32))

    def derivatives(self) -> "Features":
        """Those of d/d(R x): cosines become -t sines, sines t cosines."""
        found = object.__new__(Features)
        swapped = [np.roll(part.astype(np.float32), SINES, -1) for part in (self.high, self.low)]
        factors = np.concatenate([-self.nodes, self.nodes]).astype(np.float32)
        found.precise, found.nodes = self.precise, self.nodes
        found.high, found.low = two_parts((swapped[0] + swapped[1] if self.precise else swapped[0]) * factors)
        return found

    def product(self, other: "Features", d: int, unit: Unit | None) -> np.ndarray:
        parts = [(self.high, other.high)]
        parts += [(self.high, other.low), (self.low, other.high)] if self.precise else []
        total = None
        for x, y in parts:
            total = product(x[:, d], y[:, d], unit, unit.block if unit else 16, total)
        return total


def two_parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high = x.astype(np.float16)
    return high, (x - high.astype(np.float32)).astype(np.float16)


def attention(
    q, k, v, radius: float, dout, precise: bool, unit: Unit | None, power: int = 4, eps: float = 0.0, passes: int = 2
):
    """Output, dq, dk, dv of one head (tokens, width) without a mask, in float32, as fused.py computes them.

    A backward of one pass takes the slopes of the keys, with the other sign, for the queries. In half mode it rounds
    them to float16 before it adds them up, relative to the largest of a tile: here of all tokens.
    """
    rounded = (lambda x: x) if precise else round_to_tf32
    v, dout = rounded(v), rounded(dout)
    of_q, of_k = Features(q, radius, precise), Features(k, radius, precise)
    factors = [of_q.product(of_k, d, unit) for d in range(q.shape[1])]
    logs = np.float32(power) * sum(np.log2(np.abs(factor)) for factor in factors).astype(np.float32)
    top = logs.max(1, keepdims=True)
    if eps:
        top = np.maximum(top, np.float32(np.log2(eps)))
    exact = np.exp2(logs - top)
    weights = exact if precise else cut_to_tf32(exact)
    total = weights.sum(1, keepdims=True) + (np.exp2(np.float32(np.log2(eps)) - top) if eps else 0)
    output = values_product(weights, v, precise, unit) / total
    shares = exact / total
    dv = values_product(shares.T, dout, precise, unit)
    delta = (dout * output).sum(1, keepdims=True)
    dlogs = shares * (values_product(dout, v.T, precise, unit) - delta)
    dq, dk, largest = np.zeros_like(q), np.zeros_like(k), np.abs(dlogs).max()
    slopes_q, slopes_k = of_q.derivatives(), of_k.derivatives()
    for d, factor in enumerate(factors):
        ratio = dlogs / np.where(factor == 0, np.inf, factor)
        of_keys = ratio.T * slopes_k.product(of_q, d, unit)
        if passes == 1 and not precise:
            of_keys = (of_keys / largest).astype(np.float16).astype(np.float32) * largest
        of_queries = -of_keys.T if passes == 1 else ratio * slopes_q.product(of_k, d, unit)
        dq[:, d] = power * radius * of_queries.sum(1)
        dk[:, d] = power * radius * of_keys.sum(1)
    return output, dq, dk, dv
