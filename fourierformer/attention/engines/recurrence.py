"""Linear attention: weights are products of features, so that sums over keys replace the keys.

    o_i = sum_j A_ij v_j / den_i,  A_ij = fq_i . fk_j                        (Katharopoulos et al. 2020, equation 4)

With N tokens, M features and D coordinates per value, the formula has three forms that agree to rounding:

* parallel: the (N, N) matrix A, N^2 (M + D) multiplications; the least work for short sequences;
* chunk: S = sum_j fk_j [v_j, 1]^T over the past, stored once per CHUNK tokens, and A only inside a chunk:
  2 N M D + 64 N (M + D) multiplications, memory for N / 64 states of M (D + 1) numbers, never one state per token;
* step: S itself, M (D + 1) numbers, updated token by token (equations 18-20 there).

A gate lets the past decay (Peng et al. 2021, arXiv 2103.02143, section 3.2): A_ij exp(L_i - L_j) with
L = cumsum(log_decay) in float64, since differences of long sums cancel. They are never positive: nothing overflows.
Without a denominator, `decayed_sums` allows a decay per feature too: A_ij = sum_c fq_ic fk_jc exp(L_ic - L_jc) (Yang et
al. 2023, arXiv 2312.06635), with all of exp(L_ic - L_jc) inside a chunk of FEATURE_CHUNK tokens, since exp(-L_jc) alone
would overflow: 2 N M D + 8 N (2 M + D) multiplications, 8 M numbers of memory per token.
"""

from typing import Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention.base import Keep, State, bottom_right_causal, sees_nothing, to_float32
from fourierformer.attention.engines.evaluation import EvaluationMean

Form = Literal["auto", "parallel", "chunk"]
PARALLEL_UP_TO = 256  # keys; beyond, auto takes chunks: both take the same time at 256 (one core, D = 16)
CHUNK = 64  # tokens
FEATURE_CHUNK = 8  # tokens, where features decay one by one; auto takes chunks beyond; 16 take twice the time


class Options(TypedDict, total=False):
    """Keyword arguments of linear_attention, linear_maps and linear_step for weights and their normalisation."""

    log_decay: Tensor | None
    key_weight: Tensor | None
    floor: float
    eps: float


def linear_attention(
    fq: Tensor, fk: Tensor, v: Tensor, *, causal: bool, form: Form = "auto", log_decay: Tensor | None = None,
    key_weight: Tensor | None = None, floor: float = 0.0, eps: float = 0.0, keep: Keep = None,
    floor_share: EvaluationMean | None = None,
) -> Tensor:  # fmt: skip
    """Average the values: features fq (B, H, n, M), fk (B, H, N, M), values v (B, H, N, D) -> (B, H, n, D), dtype of v.

    Causal with n < N: the queries are the last positions. `log_decay` (B, H, N), causal only: see above.
    `key_weight` (B, H, N), default 1: a factor for every key, A_ij = fq_i.fk_j key_weight_j.
    den_i = max(sum_j A_ij + eps, floor * visible_i): where weights can be negative, `floor` keeps their sum from 0.
    visible_i is the sum of key_weight, by default 1, over the keys that query i sees, decayed like A.
    `keep`: keys that are left out have key_weight 0, and the past does not decay at their positions.
    `floor_share` counts the sums that `floor` has raised; without padding only, whose queries are meaningless.
    """
    _check(causal, log_decay)
    with torch.autocast(v.device.type, enabled=False):
        dtype = v.dtype
        fq, fk, v, log_decay, key_weight = to_float32(fq, fk, v, log_decay, key_weight)
        without_keys = None
        if keep is not None:
            without_keys = sees_nothing(fq.shape[-2], keep, causal=causal)
            out = ~keep[:, None]
            key_weight = keep[:, None].to(fk.dtype) if key_weight is None else key_weight.masked_fill(out, 0.0)
            log_decay = None if log_decay is None else log_decay.masked_fill(out, 0.0)
        log_decay = None if log_decay is None else log_decay[..., None]
        sums = _sums(fq, fk, _weigh(v, key_weight), causal, form, log_decay)
        visible = _visible(fq, fk, causal, form, log_decay, key_weight) if floor else None
        if floor_share is not None and visible is not None and keep is None:
            floor_share.add((sums[..., -1] + eps < floor * visible).to(sums.dtype))
        return _normalised(sums, visible, floor, eps, without_keys).to(dtype)


def linear_maps(
    fq: Tensor, fk: Tensor, *, causal: bool, log_decay: Tensor | None = None, key_weight: Tensor | None = None,
    floor: float = 0.0, eps: float = 0.0,
) -> Tensor:  # fmt: skip
    """The weights of linear_attention, A / den: (B, H, n, N)."""
    _check(causal, log_decay)
    with torch.autocast(fq.device.type, enabled=False):
        fq, fk, log_decay, key_weight = to_float32(fq, fk, log_decay, key_weight)
        log_decay = None if log_decay is None else log_decay[..., None]
        weights = _weights(fq, fk, causal, log_decay)
        if key_weight is not None:
            weights = weights * key_weight[..., None, :]
        visible = _visible(fq, fk, causal, "parallel", log_decay, key_weight) if floor else None
        return _normalised(torch.cat([weights, weights.sum(-1, keepdim=True)], dim=-1), visible, floor, eps)


def linear_start(like: Tensor, batch: int, heads: int, features: int, width: int) -> State:
    """The state before the first token: S (B, H, M, D + 1), and the sum of key_weight so far (B, H, 1). Its device and
    dtype are those of `like`, float32 at least."""
    (like,) = to_float32(like)
    return like.new_zeros(batch, heads, features, width + 1), like.new_zeros(batch, heads, 1)


def linear_step(
    fq: Tensor, fk: Tensor, v: Tensor, state: State, *, log_decay: Tensor | None = None,
    key_weight: Tensor | None = None, floor: float = 0.0, eps: float = 0.0,
) -> tuple[Tensor, State]:  # fmt: skip
    """linear_attention for one more token: arguments of length 1 -> (B, H, 1, D) and the next state."""
    with torch.autocast(v.device.type, enabled=False):
        dtype = v.dtype
        fq, fk, v, log_decay, key_weight = to_float32(fq, fk, v, log_decay, key_weight)
        past, visible = state
        if log_decay is not None:
            past, visible = past * log_decay[..., None].exp(), visible * log_decay.exp()
        past = past + fk.mT @ _weigh(v, key_weight)
        visible = visible + (1 if key_weight is None else key_weight)
        return _normalised(fq @ past, visible, floor, eps).to(dtype), (past, visible)


def decayed_sums(
    fq: Tensor, fk: Tensor, v: Tensor, log_decay: Tensor, *, form: Form = "auto", keep: Keep = None
) -> Tensor:
    """sum_{j <= i} A_ij v_j, causal, without a denominator: fq (B, H, n, M), fk (B, H, N, M), v (B, H, N, D), log_decay
    (B, H, N, 1) or, one for each feature, (B, H, N, M) -> (B, H, n, D), dtype of v. n < N: the last positions.

    `keep`: keys that are left out add nothing, and the past does not decay at their positions.
    """
    with torch.autocast(v.device.type, enabled=False):
        dtype = v.dtype
        fq, fk, v, log_decay = to_float32(fq, fk, v, log_decay)
        if keep is not None:
            out = ~keep[:, None, :, None]
            fk, log_decay = fk.masked_fill(out, 0.0), log_decay.masked_fill(out, 0.0)
        return _sums(fq, fk, v, True, form, log_decay).to(dtype)


def decayed_step(fq: Tensor, fk: Tensor, v: Tensor, log_decay: Tensor, state: State) -> tuple[Tensor, State]:
    """decayed_sums for one more token: arguments of length 1 -> (B, H, 1, D) and the next state S (B, H, M, D)."""
    with torch.autocast(v.device.type, enabled=False):
        dtype = v.dtype
        fq, fk, v, log_decay = to_float32(fq, fk, v, log_decay)
        past = log_decay.mT.exp() * state[0] + fk.mT @ v
        return (fq @ past).to(dtype), (past,)


def _check(causal: bool, log_decay: Tensor | None) -> None:
    if log_decay is not None and not causal:
        raise ValueError("log_decay needs a past, which only causal attention has: pass causal=True, or no log_decay")


def _weigh(v: Tensor, key_weight: Tensor | None) -> Tensor:
    """[v_j, 1] key_weight_j: one product with it yields numerator and denominator."""
    values = F.pad(v, (0, 1), value=1.0)
    return values if key_weight is None else values * key_weight[..., None]


def _normalised(
    sums: Tensor, visible: Tensor | None, floor: float, eps: float, without_keys: Tensor | None = None
) -> Tensor:
    """Numerators over their denominator. `without_keys`: True for queries without visible keys, whose sums are 0."""
    total = sums[..., -1:] + eps
    if floor and visible is not None:
        total = torch.maximum(total, floor * visible[..., None])
    if without_keys is not None:
        total = total.masked_fill(without_keys, 1.0)
    return sums[..., :-1] / total


def _visible(
    fq: Tensor, fk: Tensor, causal: bool, form: Form, log_decay: Tensor | None, key_weight: Tensor | None
) -> Tensor:
    """The sum of key_weight over the keys that each query sees, broadcastable to (B, H, n)."""
    queries, keys = fq.shape[-2], fk.shape[-2]
    if log_decay is None and key_weight is None:
        count = torch.arange(1, keys + 1, device=fk.device, dtype=fk.dtype) if causal else fk.new_full((1,), keys)
        return count[-queries:]
    one_q, one_k = torch.ones_like(fq[..., :1]), torch.ones_like(fk[..., :1])  # sums with a single feature that is 1
    values = one_k if key_weight is None else key_weight[..., None]
    return _sums(one_q, one_k, values, causal, form, log_decay)[..., 0]


def _sums(fq: Tensor, fk: Tensor, values: Tensor, causal: bool, form: Form, log_decay: Tensor | None) -> Tensor:
    """sum_j A_ij values_j; log_decay (B, H, N, 1 or M)."""
    up_to = FEATURE_CHUNK if _by_feature(log_decay) else PARALLEL_UP_TO
    if form == "parallel" or (form == "auto" and causal and fk.shape[-2] <= up_to):
        return _weights(fq, fk, causal, log_decay) @ values
    if not causal:
        return fq @ (fk.mT @ values)
    before = fk.shape[-2] - fq.shape[-2]  # keys that every query sees
    seen = fk[:, :, :before]
    if log_decay is not None:
        level = levels(log_decay[..., :before, :])
        seen, log_decay = seen * kept(level[..., -1:, :] - level, fk.dtype), log_decay[..., before:, :]
    past = seen.mT @ values[:, :, :before]
    return _chunked(fq, fk[:, :, before:], values[:, :, before:], past, log_decay)


def _by_feature(log_decay: Tensor | None) -> bool:
    return log_decay is not None and log_decay.shape[-1] > 1


def _weights(fq: Tensor, fk: Tensor, causal: bool, log_decay: Tensor | None) -> Tensor:
    """A (..., n, N), without key_weight, not normalised; log_decay (..., N, 1 or M)."""
    if not causal:
        return fq @ fk.mT
    before = fk.shape[-2] - fq.shape[-2]
    if log_decay is None:
        return (fq @ fk.mT).tril(before)
    level, queries = levels(log_decay), fq.shape[-2]
    if not _by_feature(log_decay):
        return (fq @ fk.mT).tril(before) * fading(level, queries, fq.dtype)
    difference = level[..., -queries:, None, :] - level[..., None, :, :]
    future = ~bottom_right_causal(queries, fk.shape[-2], fk.device)[..., None]
    fade = kept(difference.masked_fill(future, -torch.inf), fq.dtype)
    return ((fade * fk[..., None, :, :]) @ fq[..., None])[..., 0]


def levels(log_decay: Tensor) -> Tensor:
    """L (..., N, 1 or M), the sum of log_decay up to each token."""
    return log_decay.cumsum(-2, dtype=torch.float64)


def kept(difference: Tensor, dtype: torch.dtype) -> Tensor:
    """What is left after a difference of levels."""
    return difference.to(dtype).exp()


def fading(level: Tensor, queries: int, dtype: torch.dtype) -> Tensor:
    """exp(L_i - L_j) for the last `queries` positions i and all j <= i; 1 for j > i, where exp could overflow. Levels
    (..., N, 1)."""
    difference = level[..., -queries:, :] - level.mT
    return kept(difference.tril(level.shape[-2] - queries), dtype)


def _chunked(fq: Tensor, fk: Tensor, values: Tensor, past: Tensor, log_decay: Tensor | None) -> Tensor:
    """Causal sums of as many queries as keys; `past` (B, H, M, D') are the sums over earlier keys."""
    tokens, size = fq.shape[-2], FEATURE_CHUNK if _by_feature(log_decay) else CHUNK
    fq, fk, values = (in_chunks(t, size) for t in (fq, fk, values))
    log_decay = None if log_decay is None else in_chunks(log_decay, size)
    inside = _weights(fq, fk, True, log_decay)
    if log_decay is None:
        states = torch.cat([past[:, :, None], (fk.mT @ values)[:, :, :-1]], dim=2).cumsum(2)
    else:
        level, dtype = levels(log_decay), fq.dtype  # since the start of the chunk
        end = level[..., -1:, :]
        states = _faded_states(past, (fk * kept(end - level, dtype)).mT @ values, kept(end, dtype).mT)
        fq = fq * kept(level, dtype)
    return (fq @ states + inside @ values).flatten(2, 3)[:, :, :tokens]


def in_chunks(tensor: Tensor, size: int, fill: float = 0.0) -> Tensor:
    """(..., N, K) -> (..., chunks, size, K), the last chunk filled up."""
    return F.pad(tensor, (0, 0, 0, -tensor.shape[-2] % size), value=fill).unflatten(-2, (-1, size))


def _faded_states(state: Tensor, added: Tensor, decay: Tensor) -> Tensor:
    """The state before each chunk; chunk c multiplies it by decay_c and adds added_c."""
    states = [state]
    # unbind, not x[:, :, c]: the gradient of each slice would be a tensor of full size, quadratic work in total
    for faded, new in zip(decay[:, :, :-1].unbind(2), added[:, :, :-1].unbind(2), strict=True):
        states.append(states[-1] * faded + new)
    return torch.stack(states, dim=2)
