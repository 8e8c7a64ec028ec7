"""Averages of values with weights exp(k_u + w_tu), one average per channel, for keys of any size.

    y_t = sum_u exp(k_u + w_tu) v_u / sum_u exp(k_u + w_tu)

Shapes: k (B, H, N, 1 or D), v (B, H, N, D), w (H or 1, N, N). No tensor has N x N x D entries: where all queries of a
block see all its keys, exp(k_u + w_tu) = exp(k_u) exp(w_tu) and the sums are matrix products. The largest k of the
block and the largest w of the row are subtracted before exp. A causal average consists of such blocks, each with its
own maxima: with one maximum for the whole sequence, a key that is larger by 87 or more (exp(-87) is the smallest
float32) would make the weights of all earlier queries 0 / 0. So k may have any size; the entries of one row of w must
lie within 87 of each other, far more than learned biases need.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention.engines.recurrence import in_chunks

EMPTY = -1e30  # the key of a missing token: exp(EMPTY - anything) = 0, and no gradient becomes NaN
CHUNK = 64  # queries per block of a causal average; a power of 2


class Sums(NamedTuple):
    """Sums over some of the keys, divided by exp(top). `top` is constant to autograd: it cancels in the average."""

    top: Tensor
    weighted: Tensor  # of exp(k + w) v
    total: Tensor  # of exp(k + w)

    @property
    def average(self) -> Tensor:
        return self.weighted / self.total


def single(logit: Tensor, v: Tensor) -> Sums:
    """Each token alone, with weight exp(logit)."""
    top = logit.detach()
    total = (logit - top).exp()  # 1, with the gradient of the logit
    return Sums(top, total * v, total)


def merge(a: Sums, b: Sums) -> Sums:
    """Sums over the keys of both."""
    top = torch.maximum(a.top, b.top)
    of_a, of_b = (a.top - top).exp(), (b.top - top).exp()
    return Sums(top, a.weighted * of_a + b.weighted * of_b, a.total * of_a + b.total * of_b)


def block(w: Tensor, k: Tensor, v: Tensor) -> Sums:
    """Sums for queries that see every key: w (H or 1, ..., queries, keys), k and v (B, H, ..., keys, D)."""
    most_k, most_w = k.amax(-2, keepdim=True).detach(), w.amax(-1, keepdim=True).detach()
    sums = _add_up((w - most_w).exp(), _with_weights((k - most_k).exp(), v))
    return Sums(most_k + most_w, *_parted(sums, v))


def pooled(k: Tensor, v: Tensor) -> Sums:
    """Sums over all tokens with w = 0: (..., N, D) -> (..., 1, D), for queries that see them all."""
    top = k.amax(-2, keepdim=True).detach()
    sums = _with_weights((k - top).exp(), v).sum(-2, keepdim=True)
    return Sums(top, *_parted(sums, v))


def _with_weights(e: Tensor, v: Tensor) -> Tensor:
    """Weighted values and weights, concatenated to be summed at once."""
    return torch.cat([e * v, e], dim=-1)


def _add_up(weights: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("h...tu,bh...ud->bh...td", weights, x)


def _parted(sums: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return sums[..., : v.shape[-1]], sums[..., v.shape[-1] :]


def diagonal_blocks(w: Tensor, size: int) -> Tensor:
    """(..., N, N) -> (..., N / size, size, size): the squares along the diagonal."""
    squares = w.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    return squares.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def running(sums: Sums) -> Sums:
    """Cumulative sums over tokens (dimension -2) from those of single tokens: 2 N merges in 2 log2(N) steps.

    Neighbours are merged in pairs; running sums of pairs are those of every other token, another merge yields the rest.
    """
    tokens = sums.weighted.shape[-2]
    if tokens == 1:
        return sums
    even, odd = Sums(*(x[..., ::2, :] for x in sums)), Sums(*(x[..., 1::2, :] for x in sums))
    through_odd = running(merge(Sums(*(x[..., : tokens // 2, :] for x in even)), odd))
    before = Sums(*(x[..., : (tokens - 1) // 2, :] for x in through_odd))
    after_first = merge(before, Sums(*(x[..., 1:, :] for x in even)))
    through_even = (torch.cat([first[..., :1, :], x], dim=-2) for first, x in zip(even, after_first, strict=True))
    return Sums(*(_interleaved(x, y) for x, y in zip(through_even, through_odd, strict=True)))


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    """Rows 0, 2, 4, ... and 1, 3, 5, ... (dimension -2) in one tensor."""
    rows = even.shape[-2] + odd.shape[-2]
    odd = F.pad(odd, (0, 0, 0, even.shape[-2] - odd.shape[-2]))
    return torch.stack([even, odd], dim=-2).flatten(-3, -2)[..., :rows, :]


def causal_chunks(w: Tensor, k: Tensor, v: Tensor) -> Sums:
    """Causal sums inside chunks of c tokens, a power of 2: w (H or 1, chunks or 1, c, c), k (B, H, chunks, c, D).

    The triangle under the diagonal is cut into squares: the later half of a chunk sees its whole earlier half, and so
    on inside each half. c^2 / 2 products per chunk in log2(c) steps, without a tensor of c x c x D.
    """
    sums = single(k + w.diagonal(dim1=-2, dim2=-1)[..., None], v)
    size = 1
    while size < k.shape[-2]:
        square = diagonal_blocks(w, 2 * size)[..., size:, :size]
        earlier, later = zip(*(x.unflatten(-2, (-1, 2, size)).unbind(-3) for x in sums), strict=True)
        keys, values = (x.unflatten(-2, (-1, 2, size))[..., 0, :, :] for x in (k, v))
        later = merge(Sums(*later), block(square, keys, values))
        sums = Sums(*(torch.stack(x, dim=-3).flatten(-4, -2) for x in zip(earlier, later, strict=True)))
        size *= 2
    return sums


def power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


def causal_average(w: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The average over the tokens u <= t for any w: N^2 / 2 products, chunk by chunk."""
    tokens = k.shape[-2]
    size = min(CHUNK, power_of_two(tokens))
    missing = -tokens % size
    own = diagonal_blocks(F.pad(w, (0, missing, 0, missing)), size)
    inside = causal_chunks(own, in_chunks(k, size, EMPTY), in_chunks(v, size))
    averages = []
    for i, start in enumerate(range(0, tokens, size)):
        stop = min(start + size, tokens)
        sums = Sums(*(x[:, :, i, : stop - start] for x in inside))
        if start:
            sums = merge(sums, block(w[:, start:stop, :start], k[:, :, :start], v[:, :, :start]))
        averages.append(sums.average)
    return torch.cat(averages, dim=-2)


def neighbours(x: Tensor, offset: int, fill: float) -> Tensor:
    """Rows of x (B, H, rows, n, D) shifted: row i of the result is row i + offset of x, or `fill` beyond its ends."""
    padding = (0, 0, 0, 0, max(-offset, 0), max(offset, 0))
    return F.pad(x, padding, value=fill).narrow(-3, max(offset, 0), x.shape[-3])


def banded_causal_sums(w: Callable[[int], Tensor], k: Tensor, v: Tensor) -> Sums:
    """The sums of `causal_average`, in time N c, for w = 0 beyond the previous chunk: k, v (B, H, chunks, c, D).
    w(0) and w(-1), both (H or 1, chunks or 1, c, c), are the biases between a chunk's queries and the keys of the same
    and of the previous chunk. Older chunks have w = 0 for all queries: their running sums suffice.
    """
    before = block(w(-1), neighbours(k, -1, EMPTY), neighbours(v, -1, 0.0))
    older = running(Sums(*(x.squeeze(-2) for x in pooled(k, v))))
    moved = (neighbours(x.unsqueeze(-2), -2, fill) for x, fill in zip(older, (EMPTY, 0.0, 0.0), strict=True))
    return merge(merge(causal_chunks(w(0), k, v), before), Sums(*moved))


def banded_full_sums(w: Callable[[int], Tensor], reach: int, k: Tensor, v: Tensor) -> Sums:
    """The sums of `block`, in time N (2 reach + 1) c, for w = 0 between rows more than `reach` apart: k, v (B, H, rows,
    c, D). w(offset) (H or 1, rows or 1, c, c) are the biases between each row and the row `offset` further on.

    Every query sees every key, so one maximum suffices. Only positive numbers are added: a sum over all keys plus a sum
    of exp(w) - 1 over the window is less work, but loses all digits where the window has nearly all weight and w << 0.
    """
    most_k = k.amax((-3, -2), keepdim=True).detach()
    x = _with_weights((k - most_k).exp(), v)
    near = {offset: w(offset) for offset in range(-reach, reach + 1)}
    most_w = torch.stack([x.detach().amax() for x in near.values()]).amax().clamp_min(0)
    row = torch.arange(k.shape[-3], device=k.device)
    far = ((row - row[:, None]).abs() > reach).to(k.dtype) * (-most_w).exp()
    sums = _add_up(far[None], x.sum(-2)).unsqueeze(-2)
    for offset, biases in near.items():
        sums = sums + _add_up((biases - most_w).exp(), neighbours(x, offset, 0.0))
    return Sums(most_k + most_w, *_parted(sums, v))
