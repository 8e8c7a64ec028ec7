"""The fused kernels as two torch operators: launches, and shapes for tracing."""

import contextlib
import functools
import math

import numpy as np
import torch
import triton
from torch import Tensor

from fourierformer.kernels.sinc import features, fused, tiles
from fourierformer.kernels.sinc.operators import count_operations, register_derivative
from fourierformer.kernels.sinc.tiles import BACKWARD_ROWS, MOST_ROWS, launch

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


class Prepared:
    """Features of queries and keys, and settings of the launches: the same in forward and backward."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, radius: Tensor, tier: Tensor, keep: Tensor | None,
        power: int, eps: float, causal: bool,
    ):  # fmt: skip
        self.tier = tier
        width, value_width, precise = q.shape[3], v.shape[3], is_precise(q.dtype)
        self.sizes = (q.shape[1], q.shape[2], k.shape[2])  # H, N, M of the kernels
        self.stored = -(-width // 4) * 4
        shape = {"WIDTH": width, "STORED": self.stored, "PRECISE": precise}
        self.settings = shape | {"POWER": power, "CAUSAL": causal, "LOG": eps < LOG_BELOW}
        self.settings |= {"V_WIDTH": value_width, "V_LOADED": max(16, power_of_two(value_width))}
        per_token = (1 + precise) * self.stored * max(TIERS)
        self.q_features, self.k_features = (
            x.new_empty(len(tier), per_token * padded(x.shape[2]), dtype=torch.float16) for x in (q, k)
        )
        panels = (padded(q.shape[2]) + padded(k.shape[2])) // features.PANEL.value
        features.write_features[(len(tier) * panels,)](
            q, k, radius, tier, keep, quadrature(q.device), self.q_features, self.k_features,
            *q.stride(), *k.stride(), self.q_features.shape[1], self.k_features.shape[1], *self.sizes,
            **shape, **features.EXACT,
        )  # fmt: skip

    def launch(
        self, kernel: triton.JITFunction, name: str, rows: int, nodes: int, *arguments: object, **settings: object
    ) -> None:
        launch(kernel, name, len(self.tier), rows, *arguments, NODES=nodes, **self.settings, **settings)


def choose_tier(q: Tensor, k: Tensor, radius: Tensor, tier: Tensor) -> None:
    """Fill in the tier of each head."""
    _, heads, queries, width = q.shape
    features.choose_nodes[(len(tier),)](
        q, k, radius, tier, *q.stride(), *k.stride(), heads, queries, k.shape[2],
        WIDTH=width, LOADED=power_of_two(width), **features.EXACT,
    )  # fmt: skip


def power_of_two(number: int) -> int:
    """The least power of two that is not below `number`. Triton's own takes the host several microseconds."""
    return 1 << (number - 1).bit_length()


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


def is_precise(dtype: torch.dtype) -> bool:
    """Whether to compute float32 products to full precision, by torch's setting. Half-precision inputs have lost the
    digits already."""
    return dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"


@torch.library.custom_op("fourierformer::sinc_attention", mutates_args=())
def sinc_forward(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, power: int, eps: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forward pass: q, k, v, keep as in `sinc_attention`, radius float32 (H, D) -> output in their dtype, its rounding
    error if that has 16 bits (else an empty tensor), the normaliser (B, H, N), and the tier of each head."""
    output, lost, norm, tier = _forward_results(q, v)
    with on_device_of(q):
        keep, k, v = leave_out(keep, k, v)
        choose_tier(q, k, radius, tier)
        shared = Prepared(q, k, v, radius, tier, keep, power, eps, causal)
        for nodes in TIERS:
            shared.launch(
                fused.forward, "forward", q.shape[2], nodes,
                q, k, v, shared.q_features, shared.k_features, radius, tier, keep, output, lost, norm,
                *q.stride(), *k.stride(), *v.stride(), shared.q_features.shape[1], shared.k_features.shape[1],
                *shared.sizes, eps, math.log2(eps) if eps > 0 else -math.inf,
            )  # fmt: skip
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


@torch.library.custom_op("fourierformer::sinc_attention_backward", mutates_args=())
def sinc_backward(
    doutput: Tensor, q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, output: Tensor, lost: Tensor,
    norm: Tensor, tier: Tensor, power: int, eps: float, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v in their dtype, and of radius (H, D): in one pass over the pairs, or in two (tiles.py)."""
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    with on_device_of(q):
        keep, k, v = leave_out(keep, k, v)
        shared = Prepared(q, k, v, radius, tier, keep, power, eps, causal)
        whole = tiles.one_pass(k.shape[2])
        delta = parts = None
        part_size = padded(q.shape[2])
        sums = norm.new_empty(len(tier), padded(max(q.shape[2], k.shape[2])) * shared.stored)
        blocks = [-(-t.shape[2] // BACKWARD_ROWS) for t in (q, k)]
        moments = norm.new_empty(len(tier), sum(blocks), q.shape[3])
        sides = [("both" if whole else "keys", k, q, v, doutput, shared.k_features, shared.q_features, dk)]
        if whole:
            parts = norm.new_empty(len(tier), blocks[1], shared.stored, part_size)
        else:  # queries first: they leave delta for the keys
            delta = torch.empty_like(norm)
            sides.insert(0, ("queries", q, k, doutput, v, shared.q_features, shared.k_features, dq))
        for name, x, y, a, b, x_features, y_features, dx in sides:
            keys = name != "queries"
            for nodes in TIERS:
                shared.launch(
                    fused.backward, name, x.shape[2], nodes,
                    x, y, a, b, x_features, y_features, slope_factors(nodes, q.device), radius, tier, keep,
                    output, lost, norm, delta, sums, parts, dx, dv, moments,
                    *x.stride(), *y.stride(), *a.stride(), *b.stride(), x_features.shape[1], y_features.shape[1],
                    sums.shape[1], part_size, moments[0].numel(), keys * blocks[0] * q.shape[3], *shared.sizes,
                    LOADED=power_of_two(shared.stored), KEYS=keys,
                )  # fmt: skip
        if whole:
            fused.add_parts[(len(tier) * blocks[0],)](
                q, k, radius, parts, dq, moments, *q.stride(), *k.stride(), part_size, moments[0].numel(),
                *shared.sizes, WIDTH=q.shape[3], LOADED=power_of_two(shared.stored), STORED=shared.stored,
                POWER=power, CAUSAL=causal, ROWS=BACKWARD_ROWS,
            )  # fmt: skip
        dradius = moments.unflatten(0, q.shape[:2]).sum((0, 2))
    return dq, dk, dv, dradius


@sinc_backward.register_fake
def _(doutput, q, k, v, radius, keep, output, lost, norm, tier, power, eps, causal):
    return *(t.new_empty(t.shape) for t in (q, k, v)), radius.new_empty(radius.shape)


register_derivative(sinc_forward, sinc_backward)
count_operations(torch.ops.fourierformer.sinc_attention, per_coordinate=2 * 16, per_value=2)  # 16 features
# per side the factors twice and the slopes once; the values: dout v^T twice and dv
count_operations(torch.ops.fourierformer.sinc_attention_backward, per_coordinate=6 * 2 * 16, per_value=3 * 2, first=1)


def on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def sinc_attention_fused(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, *, power: int, eps: float, causal: bool, keep: Tensor | None = None
) -> Tensor:
    """Fourier attention by the Triton kernels, with the contract of the reference, but not in float64."""
    scale = radius.float().expand(q.shape[1], q.shape[3]).contiguous()
    return sinc_forward(q, k, v, scale, keep, power, eps, causal)[0]
