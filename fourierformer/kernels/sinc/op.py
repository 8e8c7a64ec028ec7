"""The fused kernels as two torch operators: launches, and shapes for tracing."""

import contextlib
import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from fourierformer.kernels.sinc import features, fused, is_precise, tiles
from fourierformer.kernels.sinc.operators import count_operations, direct_operator, register_derivative
from fourierformer.kernels.sinc.tiles import BACKWARD_ROWS, MOST_ROWS, Launch, launch, major_of

# Features per coordinate, chosen per head on the device; 0 means the printed formula.
TIERS = (16, 32, 0)
# From this eps on, weights too small for float32 are negligible beside it: the kernel needs no logarithms.
LOG_BELOW = 1e-20


@functools.cache
def quadrature(device: torch.device) -> Tensor:
    """(3, 3, 16): a block of eight positive Gauss-Legendre nodes t with weights w for 16 features, two blocks for 32.

    Features are sqrt(w) cos(pi/2 rate x), then as many sines. Rows of a block: rate, sqrt(w), and the factor -t or t
    that turns the other half of the block into the derivative.
    """
    blocks = []
    for count in TIERS[:2]:
        t, w = (half[count // 2 :].reshape(-1, 1, 8) for half in np.polynomial.legendre.leggauss(count))
        halves = [np.concatenate([t * 2 / math.pi, np.sqrt(w), sign * t], 1) for sign in (-1, 1)]
        blocks.append(np.concatenate(halves, 2))
    return torch.tensor(np.concatenate(blocks), dtype=torch.float32, device=device)


@functools.cache
def slope_factors(nodes: int, device: torch.device) -> Tensor:
    """The factors -t and t of the blocks of a tier (see `quadrature`), one number per feature."""
    blocks = quadrature(device)
    return (blocks[1:] if nodes == 32 else blocks[:1])[:, 2].flatten()


class Facts(NamedTuple):
    """What launches depend on of a tensor."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    beside: int  # bytes after a multiple of 16

    @classmethod
    def of(cls, *tensors: Tensor | None) -> "list[Facts | None]":
        return [t if t is None else cls(t.dtype, t.shape, t.stride(), t.data_ptr() % 16) for t in tensors]


class Plan:
    """The launches of a pass with their numbers and settings, which follow from the facts of its tensors."""

    def __init__(self, device: torch.device, power: int, eps: float, causal: bool, precise: bool, *tensors: Facts):
        self.q, self.k, self.v = tensors[:3]
        batch, heads, queries, width = self.q.shape
        keys, value_width = self.k.shape[2], self.v.shape[3]
        self.device, self.heads = device, batch * heads
        self.sizes = (heads, queries, keys)  # H, N, M of the kernels
        self.stored = -(-width // 4) * 4
        shape: dict[str, Any] = {"WIDTH": width, "STORED": self.stored, "PRECISE": precise}
        self.settings = shape | {"POWER": power, "CAUSAL": causal, "LOG": eps < LOG_BELOW}
        self.settings |= {"V_WIDTH": value_width, "V_LOADED": max(16, triton.next_power_of_2(value_width))}
        per_token = (1 + precise) * self.stored * max(TIERS)
        self.feature_sizes = [per_token * padded(tokens) for tokens in (queries, keys)]
        panels = (padded(queries) + padded(keys)) // features.PANEL.value
        numbers = *self.q.strides, *self.k.strides, *self.feature_sizes, *self.sizes
        self.write = Launch(features.write_features, self.heads * panels, numbers, shape | features.EXACT)
        self.table = quadrature(device)

    def write_features(self, q: Tensor, k: Tensor, radius: Tensor, tier: Tensor, keep: Tensor | None) -> list[Tensor]:
        """Features of queries and of keys: the same in forward and backward."""
        both = [q.new_empty(self.heads, size, dtype=torch.float16) for size in self.feature_sizes]
        self.write(q, k, radius, tier, keep, self.table, *both)
        return both

    def launches(self, kernel: triton.JITFunction, name: str, rows: int, *numbers: float, **more: object) -> list:
        """One for each form of the factors."""
        major, settings = major_of(self.device), self.settings | more
        return [launch(kernel, name, self.heads, rows, numbers, major, NODES=nodes, **settings) for nodes in TIERS]


class ForwardPlan(Plan):
    def __init__(self, device: torch.device, power: int, eps: float, *facts: Any):
        super().__init__(device, power, eps, *facts)
        width, of_pairs = self.q.shape[3], (*self.q.strides, *self.k.strides)
        shape = {"WIDTH": width, "LOADED": triton.next_power_of_2(width)}
        self.choose_nodes = Launch(features.choose_nodes, self.heads, of_pairs + self.sizes, shape | features.EXACT)
        self.forward = self.launches(
            fused.forward, "forward", self.sizes[1],
            *of_pairs, *self.v.strides, *self.feature_sizes, *self.sizes, eps, math.log2(eps) if eps > 0 else -math.inf,
        )  # fmt: skip


class BackwardPlan(Plan):
    """In one pass over the pairs (`whole`) or in two (tiles.py)."""

    def __init__(self, whole: bool, *facts: Any):
        super().__init__(*facts)
        doutput, (_, queries, keys), width = facts[-1], self.sizes, self.q.shape[3]
        self.blocks = [-(-tokens // BACKWARD_ROWS) for tokens in (queries, keys)]
        self.sums_size, part_size = padded(max(queries, keys)) * self.stored, padded(queries)
        self.part_sizes = (self.blocks[1], self.stored, part_size)
        moment_size = sum(self.blocks) * width

        def side(name: str, rows: int, tensors: tuple[Facts, ...], sizes: list[int], first_moment: int) -> list[Launch]:
            strides = itertools.chain.from_iterable(t.strides for t in tensors)
            more = {"LOADED": triton.next_power_of_2(self.stored), "KEYS": name != "queries"}
            numbers = *strides, *sizes, self.sums_size, part_size, moment_size, first_moment, *self.sizes
            return self.launches(fused.backward, name, rows, *numbers, **more)

        reverse = self.feature_sizes[::-1]
        name = "both" if whole else "keys"
        self.of_keys = side(name, keys, (self.k, self.q, self.v, doutput), reverse, self.blocks[0] * width)
        self.of_queries = []
        if not whole:
            self.of_queries = side("queries", queries, (self.q, self.k, doutput, self.v), self.feature_sizes, 0)
        numbers = *self.q.strides, *self.k.strides, part_size, moment_size, *self.sizes
        shape: dict[str, Any] = {name: self.settings[name] for name in ("WIDTH", "STORED", "POWER", "CAUSAL")}
        shape |= {"LOADED": triton.next_power_of_2(self.stored), "ROWS": BACKWARD_ROWS}
        self.add_parts = Launch(fused.add_parts, self.heads * self.blocks[0], numbers, shape)
        self.tables = [slope_factors(nodes, self.device) for nodes in TIERS]


PLANS = 256  # are kept, for shapes that take turns
forward_plan = functools.lru_cache(PLANS)(ForwardPlan)
backward_plan = functools.lru_cache(PLANS)(BackwardPlan)


def padded(tokens: int) -> int:
    """`tokens` rounded up to the rows of the largest tile, for which features exist."""
    return -(-tokens // MOST_ROWS) * MOST_ROWS


def leave_out(keep: Tensor | None, k: Tensor, v: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """keep (B, M) as bytes; k with a kept key in place of each left-out one, and v with 0.

    Both are then finite, and left-out keys do not change the tier of a head. (Masks in the loops spill: TRIED.md.)
    """
    if keep is None:
        return None, k, v
    left_out = ~keep[:, None, :, None]
    first = k.take_along_dim(keep.int().argmax(1)[:, None, None, None], 2)
    k = torch.where(left_out, first.masked_fill(left_out.all(2, keepdim=True), 0.0), k)
    return keep.contiguous().view(torch.uint8), k, v.masked_fill(left_out, 0.0)


@direct_operator("fourierformer::sinc_attention", "CPU", "CUDA")
def sinc_forward(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, power: int, eps: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forward pass: q, k, v, keep as in `sinc_attention`, radius float32 (H, D) -> output in their dtype, its rounding
    error if that has 16 bits (else an empty tensor), the normaliser (B, H, N), and the tier of each head."""
    output, lost, norm, tier = _forward_results(q, v)
    with on_device_of(q):
        keep, k, v = leave_out(keep, k, v)
        facts = Facts.of(q, k, v, radius, keep)
        plan = forward_plan(q.device, power, eps, causal, is_precise(q.dtype), *facts)
        plan.choose_nodes(q, k, radius, tier)
        both = plan.write_features(q, k, radius, tier, keep)
        for one in plan.forward:
            one(q, k, v, *both, radius, tier, keep, output, lost, norm)
    return output, lost, norm, tier


def _forward_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty tensors with the shapes of the results.

    `lost` is the rounding error of a 16-bit output: the backward subtracts dout . y from a number of nearly its size,
    so it needs more than 16 bits.
    """
    output = q.new_empty(*q.shape[:3], v.shape[3])
    lost = q.new_empty(torch.Size([0]) if output.dtype == torch.float32 else output.shape)
    norm = q.new_empty(q.shape[:3], dtype=torch.float32)
    return output, lost, norm, q.new_empty(q.shape[0] * q.shape[1], dtype=torch.int32)


@sinc_forward.register_fake
def _(q, k, v, radius, keep, power, eps, causal):
    return _forward_results(q, v)


@direct_operator("fourierformer::sinc_attention_backward", "CPU", "CUDA")
def sinc_backward(
    doutput: Tensor, q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, output: Tensor, lost: Tensor,
    norm: Tensor, tier: Tensor, power: int, eps: float, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v in their dtype, and of radius (H, D): in one pass over the pairs, or in two (tiles.py)."""
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    with on_device_of(q):
        keep, k, v = leave_out(keep, k, v)
        whole, facts = tiles.one_pass(k.shape[2]), Facts.of(q, k, v, radius, keep, tier, output, lost, norm, doutput)
        plan = backward_plan(whole, q.device, power, eps, causal, is_precise(q.dtype), *facts)
        q_features, k_features = plan.write_features(q, k, radius, tier, keep)
        delta = None if whole else torch.empty_like(norm)
        parts = norm.new_empty(plan.heads, *plan.part_sizes) if whole else None
        sums = norm.new_empty(plan.heads, plan.sums_size)
        moments = norm.new_empty(plan.heads, sum(plan.blocks), q.shape[3])
        shared = (radius, tier, keep, output, lost, norm, delta, sums, parts)
        # queries first: they leave delta for the keys
        for one, table in zip(plan.of_queries, plan.tables, strict=False):
            one(q, k, doutput, v, q_features, k_features, table, *shared, dq, dv, moments)
        for one, table in zip(plan.of_keys, plan.tables, strict=True):
            one(k, q, v, doutput, k_features, q_features, table, *shared, dk, dv, moments)
        if whole:
            plan.add_parts(q, k, radius, parts, dq, moments)
        dradius = moments.sum(1).unflatten(0, q.shape[:2]).sum(0)  # one sum over both dimensions takes 5 times as long
    return dq, dk, dv, dradius


@sinc_backward.register_fake
def _(doutput, q, k, v, radius, keep, output, lost, norm, tier, power, eps, causal):
    return *(t.new_empty(t.shape) for t in (q, k, v)), radius.new_empty(radius.shape)


register_derivative(sinc_forward, sinc_backward)
count_operations(torch.ops.fourierformer.sinc_attention, per_coordinate=2 * 16, per_value=2)  # 16 features
# the factors twice and the slopes; dout v^T and dv. What a second pass repeats is not counted.
count_operations(torch.ops.fourierformer.sinc_attention_backward, per_coordinate=3 * 2 * 16, per_value=2 * 2, first=1)


def on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def sinc_attention_fused(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, *, power: int, eps: float, causal: bool, keep: Tensor | None = None
) -> Tensor:
    """Fourier attention by the Triton kernels, with the contract of the reference, but not in float64."""
    scale = radius.float().expand(q.shape[1], q.shape[3]).contiguous()
    return sinc_forward(q, k, v, scale, keep, power, eps, causal)[0]
