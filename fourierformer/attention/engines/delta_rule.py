"""The delta rule: a memory that overwrites the value of a key, where linear attention adds to it.

    S_t = S_(t-1) + beta_t fk_t (v_t - S_(t-1)^T fk_t)^T,  o_t = S_t^T fq_t       (Schlag et al. 2021, arXiv 2102.11174)

The written rows u_t = beta_t (v_t - S_(t-1)^T fk_t) are a linear function of the rows before them:
u_t + beta_t sum_{j < t} (fk_t.fk_j) u_j = beta_t v_t, a triangular system, solved at once instead of token by token.
With N tokens, M features and D coordinates, the formula has three forms that agree to rounding:

* parallel: one system of N rows, N^2 (M + 1.5 D) multiplications;
* chunk: a system of CHUNK rows per chunk, with v - fk S in place of v for the memory S before the chunk (Yang et al.
  2024, arXiv 2406.06484); 3 N M D + 32 N (M + 1.5 D) multiplications, memory for N / 32 states of M D numbers;
* step: the recurrence.
"""

import torch
from torch import Tensor

from fourierformer.attention.base import State, to_float32
from fourierformer.attention.engines.recurrence import Form, in_chunks

PARALLEL_UP_TO = 64  # tokens; beyond, auto takes chunks: both take the same time at 64 (one core, D = 16)
CHUNK = 32  # tokens; less time than 16 or 64 (one core, D = 16)


def delta_rule(fq: Tensor, fk: Tensor, v: Tensor, beta: Tensor, *, form: Form = "auto") -> Tensor:
    """Read the memory at the position of every query, causal: features fq, fk (B, H, N, M), values v (B, H, N, D),
    writing rates beta (B, H, N) -> (B, H, N, D).
    The memory is bounded while |fk_t|^2 beta_t <= 2; features that are positive and sum to 1 have |fk_t|^2 <= 1.
    """
    with torch.autocast(v.device.type, enabled=False):
        fq, fk, values, beta = to_float32(fq, fk, v, beta[..., None])
        if form == "parallel" or (form == "auto" and v.shape[-2] <= PARALLEL_UP_TO):
            mixed = (fq @ fk.mT).tril() @ _solved(_system(fk, beta), beta * values)
        else:
            mixed = _chunk_form(fq, fk, values, beta)
        return mixed.to(v.dtype)


def delta_step(fq: Tensor, fk: Tensor, v: Tensor, beta: Tensor, state: State) -> tuple[Tensor, State]:
    """delta_rule for one more token: arguments of length 1 -> (B, H, 1, D) and the next state S (B, H, M, D)."""
    with torch.autocast(v.device.type, enabled=False):
        fq, fk, values, beta = to_float32(fq, fk, v, beta)
        (memory,) = state
        memory = memory + fk.mT @ (beta[..., None] * (values - fk @ memory))
        return (fq @ memory).to(v.dtype), (memory,)


def _system(fk: Tensor, beta: Tensor) -> Tensor:
    """The matrix beta_t (fk_t.fk_j) for j < t, of the rows that are written; the ones of its diagonal are implied."""
    return (beta * (fk @ fk.mT)).tril(-1)


def _solved(system: Tensor, right: Tensor) -> Tensor:
    """u with u_t + sum_{j < t} system_tj u_j = right_t."""
    return torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)


def _chunk_form(fq: Tensor, fk: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """delta_rule chunk by chunk; what does not depend on the memory is computed for all chunks together."""
    tokens = v.shape[-2]
    fq, fk, v, beta = (in_chunks(t, CHUNK) for t in (fq, fk, v, beta))
    system, inside = _system(fk, beta), (fq @ fk.mT).tril()
    memory, mixed = torch.zeros_like(fk[:, :, 0].mT @ v[:, :, 0]), []
    # unbind, not x[:, :, c]: the gradient of each slice would be a tensor of full size, quadratic work in total
    for q, k, weights, rows, values, rate in zip(
        *(t.unbind(2) for t in (fq, fk, inside, system, v, beta)), strict=True
    ):
        written = _solved(rows, rate * (values - k @ memory))
        mixed.append(q @ memory + weights @ written)
        memory = memory + k.mT @ written
    return torch.cat(mixed, dim=2)[:, :, :tokens]
