"""The delta rule: a memory that overwrites the value of a key, where linear attention adds to it.

    S_t = S' + fk_t u_t^T,  u_t = beta_t (v_t - S'^T fk_t),  o_t = S_t^T fq_t
    S' = S_(t-1)               (Schlag et al. 2021, arXiv 2102.11174)
    S' = exp(g_t) S_(t-1)      with a gate (Yang et al. 2024, arXiv 2412.06464), g_t = log_decay_t <= 0

The written rows u are a linear function of the rows before them: with L = cumsum(g),
u_t + beta_t sum_{j < t} exp(L_t - L_j) (fk_t.fk_j) u_j = beta_t v_t, a triangular system, solved at once instead of
token by token. With N tokens, M features and D coordinates, the formula has three forms that agree to rounding:

* parallel: one system of N rows, N^2 (2 M + 1.5 D) multiplications;
* chunk: a system of CHUNK rows per chunk, with v_t - exp(L_t) S^T fk_t in place of v_t for the memory S before the
  chunk and L summed from its start (Yang et al. 2024, arXiv 2406.06484); 3 N M D + 32 N (2 M + 1.5 D) multiplications,
  memory for N / 32 states of M D numbers;
* step: the recurrence.

All exponents are differences that are never positive, so nothing overflows.
"""

import torch
from torch import Tensor

from fourierformer.attention.base import State, to_float32
from fourierformer.attention.engines.recurrence import Form, fading, in_chunks, kept, levels

PARALLEL_UP_TO = 64  # tokens; beyond, auto takes chunks: both take the same time at 64 (one core, D = 16)
CHUNK = 32  # tokens; less time than 16 or 64 (one core, D = 16)


def delta_rule(
    fq: Tensor, fk: Tensor, v: Tensor, beta: Tensor, *, log_decay: Tensor | None = None, form: Form = "auto"
) -> Tensor:
    """Read the memory at the position of every query, causal: features fq, fk (B, H, N, M), values v (B, H, N, D),
    writing rates beta and log_decay (B, H, N) -> (B, H, N, D).
    The memory is bounded while |fk_t|^2 beta_t <= 2; features that are positive and sum to 1 have |fk_t|^2 <= 1.
    """
    with torch.autocast(v.device.type, enabled=False):
        fq, fk, values, beta, log_decay = to_float32(fq, fk, v, beta, log_decay)
        beta, log_decay = beta[..., None], None if log_decay is None else log_decay[..., None]
        if form == "parallel" or (form == "auto" and v.shape[-2] <= PARALLEL_UP_TO):
            fade = None if log_decay is None else fading(levels(log_decay), v.shape[-2], fk.dtype)
            mixed = _inside(fq, fk, fade) @ _solved(_system(fk, beta, fade), beta * values)
        else:
            mixed = _chunk_form(fq, fk, values, beta, log_decay)
        return mixed.to(v.dtype)


def delta_step(
    fq: Tensor, fk: Tensor, v: Tensor, beta: Tensor, state: State, *, log_decay: Tensor | None = None
) -> tuple[Tensor, State]:
    """delta_rule for one more token: arguments of length 1 -> (B, H, 1, D) and the next state S (B, H, M, D)."""
    with torch.autocast(v.device.type, enabled=False):
        fq, fk, values, beta, log_decay = to_float32(fq, fk, v, beta, log_decay)
        (memory,) = state
        if log_decay is not None:
            memory = memory * log_decay[..., None].exp()
        memory = memory + fk.mT @ (beta[..., None] * (values - fk @ memory))
        return (fq @ memory).to(v.dtype), (memory,)


def _inside(fq: Tensor, fk: Tensor, fade: Tensor | None) -> Tensor:
    """exp(L_t - L_j) fq_t.fk_j for j <= t: the weights of the written rows. `fade` holds the exponentials."""
    weights = (fq @ fk.mT).tril()
    return weights if fade is None else weights * fade


def _system(fk: Tensor, beta: Tensor, fade: Tensor | None) -> Tensor:
    """beta_t exp(L_t - L_j) fk_t.fk_j for j < t: the matrix of the system without the ones of its diagonal."""
    return beta * _inside(fk, fk, fade).tril(-1)


def _solved(system: Tensor, right: Tensor) -> Tensor:
    """u with u_t + sum_{j < t} system_tj u_j = right_t."""
    return torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)


def _chunk_form(fq: Tensor, fk: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None) -> Tensor:
    """delta_rule chunk by chunk; what does not depend on the memory is computed for all chunks together."""
    tokens = v.shape[-2]
    fq, fk, v, beta = (in_chunks(t, CHUNK) for t in (fq, fk, v, beta))
    if log_decay is None:
        system, inside = _system(fk, beta, None), _inside(fq, fk, None)
        asking, ends = fk, torch.ones_like(beta[..., :1, :])
    else:
        level, dtype = levels(in_chunks(log_decay, CHUNK)), fk.dtype  # since the start of the chunk
        fade, end = fading(level, CHUNK, dtype), level[..., -1:, :]
        system, inside = _system(fk, beta, fade), _inside(fq, fk, fade)
        fq, asking, fk = fq * kept(level, dtype), fk * kept(level, dtype), fk * kept(end - level, dtype)
        ends = kept(end, dtype)
    memory, mixed = torch.zeros_like(fk[:, :, 0].mT @ v[:, :, 0]), []
    # unbind, not x[:, :, c]: the gradient of each slice would be a tensor of full size, quadratic work in total
    chunks = zip(*(t.unbind(2) for t in (fq, asking, fk, ends, inside, system, v, beta)), strict=True)
    for q, ask, k, end, weights, rows, values, rate in chunks:
        written = _solved(rows, rate * (values - ask @ memory))
        mixed.append(q @ memory + weights @ written)
        memory = end * memory + k.mT @ written
    return torch.cat(mixed, dim=2)[:, :, :tokens]
