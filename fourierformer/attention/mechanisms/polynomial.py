"""Softmax with a polynomial in place of the exponential: linear attention with deterministic features.

A polynomial with coefficients c_m >= 0 is a dot product of features, kappa(q.k) = sum_m c_m (q.k)^m = phi(q).phi(k):
one feature for every monomial of degree n at most, (q.k)^m = sum_{|a| = m} m!/a! q^a k^a (multinomial theorem).
M = C(D + n, n): 153, 561, 1225, 2145 at order 2 for D = 16, 32, 48, 64; the tensor power has D^n.
"""

import math
from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Keep, State, to_float32, visible_keys
from fourierformer.attention.engines.recurrence import PARALLEL_UP_TO, Form, linear_attention
from fourierformer.attention.mechanisms.linear import FeatureAttention, FeaturePair
from fourierformer.errors import SetupError

MAX_FEATURES = 32768  # a state of 32768 (D + 1) numbers per head is as large as 16384 keys and values
MAX_FEATURE_ORDER = 20  # 20! is the last factorial of 64 bits
LARGEST = 1e25  # of s^n / n!: its sum over 1e8 keys, times values of up to 1e5, is below 3e38
# The least mean weight in the denominator; kappa(0) = 1. expdef has weights 0 at s = -n, and a query that sees no other
# keys would yield 0 / 0.
FLOOR = 1e-6


def taylor_kernel(s: Tensor, order: int) -> Tensor:
    """sum_{m <= n} s^m / m!, by Horner's rule. Positive everywhere for even n."""
    result = torch.ones_like(s)
    for m in range(order, 0, -1):
        result = 1 + s * result / m
    return result


def expdef_kernel(s: Tensor, order: int) -> Tensor:
    """(1 + s / n)^n, the exponential's definition before the limit. Never negative for even n."""
    return (1 + s / order) ** order


def shorten(x: Tensor, order: int) -> Tensor:
    """x with vectors (the last dimension) shortened to the length at which a polynomial of their products is finite in
    float32: 2e3 at order 4, 71 at order 8 ((LARGEST n!)^(1 / 2n)). Order 2 needs no limit below 1e6.
    """
    if order == 2:
        return x
    longest = math.exp((math.log(LARGEST) + math.lgamma(order + 1)) / (2 * order))
    return x * (longest / x.norm(dim=-1, keepdim=True).clamp_min(longest))


def taylor_coefficients(order: int) -> list[float]:
    return [1 / math.factorial(m) for m in range(order + 1)]


def expdef_coefficients(order: int) -> list[float]:
    return [math.comb(order, m) / order**m for m in range(order + 1)]


class Series(NamedTuple):
    """A polynomial of a given order: its values, and its coefficients."""

    kernel: Callable[[Tensor, int], Tensor]
    coefficients: Callable[[int], list[float]]


class Monomials(nn.Module):
    """phi(x), (..., N, D) -> (..., N, M), with phi(x).phi(y) = sum_m coefficients[m] (x.y)^m.

    A monomial of degree n at most in x is one of degree n exactly in [1, x], so `columns` (n, M) lists the n factors of
    each; sorted choices are in the order of their degree. `orderings` counts the orders of the factors of each choice,
    in integers: conversion to any dtype starts from exact numbers.
    """

    columns: Tensor
    orderings: Tensor

    def __init__(self, width: int, coefficients: list[float]):
        super().__init__()
        self.coefficients = coefficients
        order = len(coefficients) - 1
        choices = list(combinations_with_replacement(range(width + 1), order))
        self.register_buffer("columns", torch.tensor(choices).T.contiguous(), persistent=False)
        self.register_buffer("orderings", torch.tensor([orderings(c) for c in choices]), persistent=False)
        self.per_degree = [math.comb(width + m - 1, m) for m in range(order + 1)]

    def forward(self, x: Tensor) -> Tensor:
        degrees = self.orderings.to(x.dtype).split(self.per_degree)
        product = torch.cat([c * count for c, count in zip(self.coefficients, degrees, strict=True)]).sqrt()[:, None]
        # Tokens are the innermost dimension: with tokens outermost, selection took 13 times as long on a CPU (D = 16,
        # order 2, 16,384 tokens), and the time grew as N^1.3.
        one_x = F.pad(x.mT, (0, 0, 1, 0), value=1.0)
        for column in self.columns:
            product = product * one_x.index_select(-2, column)
        return ContiguousTranspose.apply(product)


class ContiguousTranspose(torch.autograd.Function):
    """x.mT and its gradient, contiguous in memory: a product of tensors of different layout is slower than a copy."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.mT.contiguous()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.mT.contiguous()


def orderings(choice: tuple[int, ...]) -> int:
    """m!/a!, the number of orders of the m factors other than 1."""
    factors = [column for column in choice if column]
    return math.factorial(len(factors)) // math.prod(math.factorial(factors.count(f)) for f in set(factors))


class PolynomialAttention(FeatureAttention):
    """Weights kappa(q.k / sqrt(D)) for a polynomial kappa of even order, normalised by their sum.

    Two forms of one formula, equal to rounding: kappa of the logits, without features, and linear attention over the
    features. `auto` takes the second beyond 256 and M keys; below, the weights take less work and memory.
    """

    rotary_ok = True
    cost = "min(N, M) N C, M = C(D+n, n)"
    series: ClassVar[Series]
    monomials: Any  # Monomials, or None where the chunk form is refused

    def __init__(self, geometry: Geometry, *, order: int = 2, form: Form = "auto"):
        super().__init__(geometry, form)
        if order < 2 or order % 2:
            reason = "odd orders are negative for very negative logits, and weights of both signs can add up to 0"
            raise SetupError(f"attention.order must be an even integer >= 2, got {order}: {reason}")
        width = geometry.head_dim
        self.order, self.features = order, math.comb(width + order, order)
        fits = self.features <= MAX_FEATURES and order <= MAX_FEATURE_ORDER
        if form == "chunk" and not fits:
            raise SetupError(
                f"attention.form=chunk with attention.order={order} and {width} coordinates per head needs "
                f"{self.features} features; at most {MAX_FEATURES} and order {MAX_FEATURE_ORDER} are possible: "
                "choose attention.form=parallel, a smaller order or more heads"
            )
        self.monomials = Monomials(width, self.series.coefficients(order)) if fits else None

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        causal = self.geometry.causal and not cross
        with torch.autocast(q.device.type, enabled=False):
            q, k = self._scaled(q), self._scaled(k)
            if self._by_features(k.shape[-2]):
                fq, fk = self.monomials(q), self.monomials(k)
                return linear_attention(fq, fk, v, causal=causal, floor=FLOOR, keep=keep)
            weights, total = self._weights(q, k, causal, keep)
            return (weights @ v.to(weights.dtype) / total).to(v.dtype)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            weights, total = self._weights(self._scaled(q), self._scaled(k), self.geometry.causal)
            return weights / total

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        return FeaturePair(self.monomials(self._scaled(q)), self.monomials(self._scaled(k)), {"floor": FLOOR})

    def start(self, batch: int) -> State | None:
        """None where the chunk form is refused: keys and values take less memory."""
        return None if self.monomials is None else super().start(batch)

    def _by_features(self, keys: int) -> bool:
        if self.form == "auto":
            return self.monomials is not None and keys > max(PARALLEL_UP_TO, self.features)
        return self.form == "chunk"

    def _scaled(self, x: Tensor) -> Tensor:
        """x / D^(1/4), in float32 at least, and short enough for the polynomial."""
        (x,) = to_float32(x)
        return shorten(x * self.geometry.head_dim**-0.25, self.order)

    def _weights(self, q: Tensor, k: Tensor, causal: bool, keep: Keep = None) -> tuple[Tensor, Tensor]:
        """kappa(q.k), 0 for invisible keys, and its sum over keys, the denominator."""
        weights = self.series.kernel(q @ k.mT, self.order)
        queries, keys = weights.shape[-2:]
        if keep is not None:
            mask = visible_keys(q, k, causal=causal, keep=keep)
            weights, visible = weights.masked_fill(~mask, 0.0), mask.sum(-1, keepdim=True)
            total = torch.maximum(weights.sum(-1, keepdim=True), FLOOR * visible)
            return weights, total.masked_fill(visible == 0, 1.0)
        visible = torch.full((queries, 1), keys, device=q.device)
        if causal:
            weights = weights.tril(keys - queries)
            visible = torch.arange(keys - queries + 1, keys + 1, device=q.device)[:, None]
        return weights, torch.maximum(weights.sum(-1, keepdim=True), FLOOR * visible)


@register("taylor", "softmax's exponential replaced by its Taylor polynomial: features without randomness")
class Taylor(PolynomialAttention):
    """kappa(s) = sum_{m <= n} s^m / m! at s = q.k / sqrt(D), positive for even n (Nauen et al. 2024).

    Near softmax only where logits are small, and there it converges faster than any power of 1 / n. Far from 0 it
    grows as s^n on both sides: a key opposite to the query weighs as much as one along it.
    Differs from the source in the logits: there s = t q.k / (|q| |k|) with a learned t per head, 1 at first, which is
    `model.qk_norm=cosine` with another start (10); and in the released code's factors of the output, sqrt(N / D) or
    its inverse, which are left out.
    """

    source = "Nauen et al. 2024, arXiv 2403.02920"
    series = Series(taylor_kernel, taylor_coefficients)


@register("expdef", "softmax's exponential replaced by (1 + s/n)^n, its definition before the limit")
class ExpDef(PolynomialAttention):
    """kappa(s) = (1 + s / n)^n at s = q.k / sqrt(D): its features are the n-fold tensor power of [1, x / sqrt(n)].

    n log(1 + s / n) = s - s^2 / (2 n) + ..., so against softmax the error falls as 1 / n. For even n never negative,
    but 0 at s = -n and growing again below.
    """

    source = "ours, from exp(s) = lim (1 + s/n)^n"
    series = Series(expdef_kernel, expdef_coefficients)
