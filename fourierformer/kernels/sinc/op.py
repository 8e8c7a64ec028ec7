"""The fused kernels as two torch operators: launching, shapes for tracing, autograd, and a count of operations."""

import contextlib
import functools
import math

import numpy as np
import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from fourierformer.kernels.sinc import features, fused
from fourierformer.kernels.sinc.reference import NO_SECOND_DERIVATIVE
from fourierformer.kernels.sinc.tiles import BACKWARD_ROWS, MOST_ROWS, launch

# Features per coordinate, chosen per head on the device; 0 means the printed formula.
TIERS = (16, 32, 0)
# From this eps on, weights too small for float32 are negligible beside it: the kernel needs no logarithms.
LOG_BELOW = 1e-20


@functools.cache
def quadrature(device: torch.device) -> Tensor:
    """(3, 3, 16): a block of eight positive Gauss-Legendre nodes t with weights w for 16 features, two blocks for 32.

    Features are sqrt(w) cos(pi/2 rate x), then as many sines; the rows are rate, sqrt(w), and the factor -t or t with
    which the other half of a block becomes the derivative.
    """
    blocks = []
    for count in TIERS[:2]:
        t, w = (half[count // 2 :].reshape(-1, 1, 8) for half in np.polynomial.legendre.leggauss(count))
        halves = [np.concatenate([t * 2 / math.pi, np.sqrt(w), sign * t], 1) for sign in (-1, 1)]
        blocks.append(np.concatenate(halves, 2))
    return torch.tensor(np.concatenate(blocks), dtype=torch.float32, device=device)


@functools.cache
def slope_factors(nodes: int, device: torch.device) -> Tensor:
    """The factors -t and t of a tier's blocks (see `quadrature`), one number per feature."""
    blocks = quadrature(device)
    return (blocks[1:] if nodes == 32 else blocks[:1])[:, 2].flatten()


class Prepared:
    """What forward and backward have in common: the features of queries and keys, the tier of each head, settings."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        radius: Tensor,
        tier: Tensor,
        keep: Tensor | None,
        power: int,
        eps: float,
        causal: bool,
    ):
        self.tier = tier
        _, self.heads, self.queries, self.width = q.shape
        self.keys = k.shape[2]
        self.precise = is_precise(q.dtype)
        self.stored = triton.cdiv(self.width, 4) * 4
        self.settings = {"POWER": power, "CAUSAL": causal, "LOG": eps < LOG_BELOW, "PRECISE": self.precise}
        self.settings |= {"WIDTH": self.width, "STORED": self.stored}
        self.q_features, self.k_features = (self._empty_features(x) for x in (q, k))
        panels = (padded(self.queries) + padded(self.keys)) // features.PANEL.value
        features.write_features[(len(self.tier) * panels,)](
            q, k, radius, self.tier, keep, quadrature(q.device), self.q_features, self.k_features,
            *q.stride(), *k.stride(), self.q_features.shape[1], self.k_features.shape[1],
            self.heads, self.queries, self.keys,
            WIDTH=self.width, STORED=self.stored, PRECISE=self.precise, **features.EXACT,
        )  # fmt: skip

    def _empty_features(self, x: Tensor) -> Tensor:
        size = (1 + self.precise) * self.stored * padded(x.shape[2]) * max(TIERS)
        return x.new_empty(len(self.tier), size, dtype=torch.float16)

    def launch(self, kernel: triton.JITFunction, rows: int, nodes: int, *arguments: object, **settings: object) -> None:
        launch(kernel, len(self.tier), rows, *arguments, NODES=nodes, **self.settings, **settings)


def choose_tier(q: Tensor, k: Tensor, radius: Tensor, tier: Tensor) -> None:
    """Fills in the tier of each head."""
    _, heads, queries, width = q.shape
    features.choose_nodes[(len(tier),)](
        q, k, radius, tier, *q.stride(), *k.stride(), heads, queries, k.shape[2],
        WIDTH=width, LOADED=triton.next_power_of_2(width), **features.EXACT,
    )  # fmt: skip


def padded(tokens: int) -> int:
    """`tokens` rounded up to the rows of the largest tile, for which features exist."""
    return triton.cdiv(tokens, MOST_ROWS) * MOST_ROWS


def value_settings(v: Tensor) -> dict[str, int]:
    return {"V_WIDTH": v.shape[3], "V_LOADED": max(16, triton.next_power_of_2(v.shape[3]))}


def leave_out(keep: Tensor | None, k: Tensor, v: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """keep (B, M) as bytes; k and v where keys that are left out are replaced by a key that is kept, their values by 0.

    They are then finite, and do not change the tier of a head. (With masks in the loops over tiles instead, registers
    spilled on the keys' side at 64 coordinates.)
    """
    if keep is None:
        return None, k, v
    left_out = ~keep[:, None, :, None]
    first = k.take_along_dim(keep.int().argmax(1)[:, None, None, None], 2)
    k = torch.where(left_out, first.masked_fill(left_out.all(2, keepdim=True), 0.0), k)
    return keep.contiguous().view(torch.uint8), k, v.masked_fill(left_out, 0.0)


def is_precise(dtype: torch.dtype) -> bool:
    """Whether to compute float32 products to full precision, by torch's own setting. Half-precision inputs have lost
    the digits already."""
    return dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"


@torch.library.custom_op("fourierformer::sinc_attention", mutates_args=())
def sinc_forward(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, keep: Tensor | None, power: int, eps: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forward pass: q, k, v, keep as in `sinc_attention`, radius float32 (H, D) -> output in their dtype, its rounding
    error if that has 16 bits (else an empty tensor), the normaliser (B, H, N), and the tier of each head.
    """
    output, lost, norm, tier = _forward_results(q, v)
    with on_device_of(q):
        keep, k, v = leave_out(keep, k, v)
        choose_tier(q, k, radius, tier)
        shared = Prepared(q, k, radius, tier, keep, power, eps, causal)
        for nodes in TIERS:
            shared.launch(
                fused.forward, shared.queries, nodes,
                q, k, v, shared.q_features, shared.k_features, radius, tier, keep, output, lost, norm,
                *q.stride(), *k.stride(), *v.stride(), shared.q_features.shape[1], shared.k_features.shape[1],
                shared.heads, shared.queries, shared.keys, eps, math.log2(eps) if eps > 0 else -math.inf,
                **value_settings(v),
            )  # fmt: skip
    return output, lost, norm, tier


def _forward_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty tensors with the shapes of the results.

    The backward needs dout . y to more digits than 16 bits hold: it is subtracted from nearly the same number. Hence
    `lost`, the rounding error of the output, which float32 does not need.
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
    """Gradients of q, k, v in their dtype, and of radius (H, D)."""
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    with on_device_of(q):
        keep, k, v = leave_out(keep, k, v)
        shared = Prepared(q, k, radius, tier, keep, power, eps, causal)
        delta = torch.empty_like(norm)
        sums = norm.new_empty(len(tier), padded(max(q.shape[2], k.shape[2])) * shared.stored)
        blocks = [triton.cdiv(t.shape[2], BACKWARD_ROWS) for t in (q, k)]
        moments = norm.new_zeros(len(tier), sum(blocks), shared.width)
        sides = (  # queries first: they leave delta for the keys
            (q, k, doutput, v, shared.q_features, shared.k_features, dq),
            (k, q, v, doutput, shared.k_features, shared.q_features, dk),
        )
        for keys, (x, y, a, b, x_features, y_features, dx) in enumerate(sides):
            for nodes in TIERS:
                shared.launch(
                    fused.backward, x.shape[2], nodes,
                    x, y, a, b, x_features, y_features, slope_factors(nodes, q.device), radius, tier, keep,
                    output, lost, norm, delta, sums, dx, dv, moments,
                    *x.stride(), *y.stride(), *a.stride(), *b.stride(), x_features.shape[1], y_features.shape[1],
                    sums.shape[1], moments[0].numel(), keys * blocks[0] * shared.width,
                    shared.heads, shared.queries, shared.keys,
                    **value_settings(v), LOADED=triton.next_power_of_2(shared.stored), KEYS=bool(keys),
                )  # fmt: skip
        dradius = moments.sum(1).unflatten(0, q.shape[:2]).sum(0)
    return dq, dk, dv, dradius


@sinc_backward.register_fake
def _(doutput, q, k, v, radius, keep, output, lost, norm, tier, power, eps, causal):
    return *(t.new_empty(t.shape) for t in (q, k, v)), radius.new_empty(radius.shape)


def _save(ctx, inputs, output) -> None:
    q, k, v, radius, keep, ctx.power, ctx.eps, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, radius, keep, *output)
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx, doutput, *_):
    gradients = sinc_backward(doutput, *ctx.saved_tensors, ctx.power, ctx.eps, ctx.causal)
    return *gradients, None, None, None, None


sinc_forward.register_autograd(_differentiate, setup_context=_save)


def _refuse_second_derivative(ctx, *_):
    raise NotImplementedError(NO_SECOND_DERIVATIVE)


sinc_backward.register_autograd(_refuse_second_derivative)


@register_flop_formula(torch.ops.fourierformer.sinc_attention)
def _forward_flops(q_shape, k_shape, v_shape, *_, **__) -> int:
    """Floating-point operations of all N M pairs, masked or not, as torch counts softmax's: sixteen columns per
    coordinate, and the values."""
    batch, heads, queries, width = q_shape
    return 2 * batch * heads * queries * k_shape[2] * (16 * width + v_shape[3])


@register_flop_formula(torch.ops.fourierformer.sinc_attention_backward)
def _backward_flops(_dout_shape, q_shape, k_shape, v_shape, *_, **__) -> int:
    """As `_forward_flops`: per side the factors twice and the slopes once, then dout v^T twice and dv."""
    batch, heads, queries, width = q_shape
    return 2 * batch * heads * queries * k_shape[2] * (6 * 16 * width + 3 * v_shape[3])


def on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def sinc_attention_fused(
    q: Tensor, k: Tensor, v: Tensor, radius: Tensor, *, power: int, eps: float, causal: bool, keep: Tensor | None = None
) -> Tensor:
    """Fourier attention by the Triton kernels, with the arguments and the result of the reference, but not in
    float64."""
    scale = radius.float().expand(q.shape[1], q.shape[3]).contiguous()
    return sinc_forward(q, k, v, scale, keep, power, eps, causal)[0]
