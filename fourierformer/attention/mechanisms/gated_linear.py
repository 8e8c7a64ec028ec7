"""Linear attention without a denominator whose past decays: RetNet, Mamba-2's core, and gated linear attention."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, State, to_float32
from fourierformer.attention.engines.decay import TokenDecay
from fourierformer.attention.engines.head_norm import head_norm
from fourierformer.attention.engines.recurrence import Form, decayed_step, decayed_sums

RANK, TEMPERATURE = 16, 16  # of the decay per feature

Decay = Literal["head", "token", "feature"]


@register("gla", "as retnet, and every coordinate of the keys decays by a gate of the token", decay="feature")
@register("ssd", "as retnet, and the decay and the key's weight are those of the token: Mamba-2's core", decay="token")
@register("retnet", "linear attention that forgets at a fixed rate per head; its output is normalised and gated")
class GatedLinear(Attention):
    """y_t = RMSNorm(S_t^T q_t / sqrt(D)) silu(W x_t) per head, S_t = diag(a_t) S_(t-1) + s_t k_t v_t^T.

    head (`retnet`): a = 1 - 2^(-5-h) in head h = 0, 1, ..., fixed; s = 1.
    token (`ssd`): log a_t = -A s_t, s_t = softplus(w.x_t + b) per head, see engines/decay.py.
    feature (`gla`): log a_t = log sigmoid(W2 W1 x_t + b) / 16 for every coordinate of the keys, of rank 16; s = 1.
    A key has the weight exp(sum of log a since then). With a = s = 1 this is linear attention without its denominator.
    The scale of the norm is shared by the heads. Time per head N D (2 D + 128) in chunks; where features decay
    N D (2 D + 24), and 8 times the memory of the keys.
    Differs from the sources: values are as wide as keys; positions are those of the model (RetNet rotates q and k); of
    Mamba-2 there is no convolution and no skip past the memory, every head has its own q and k, the norm comes before
    the gate, q.k is divided by sqrt(D), and A starts in 0 .. 16, there in 1 .. 16. At the start of `ssd`, where s is
    .001 to .1, the mixture is smaller than the eps of the norm, 1e-5: its outputs are a fifth of their later size.
    """

    partial_queries = padding_ok = True
    full_ok = "a decay needs an order of the tokens"
    cross_ok = "its decays lie between two tokens of one sequence"
    cost, state = "N D C", "C D"
    source = "Sun et al. 2023, arXiv 2307.08621; Dao and Gu 2024, 2405.21060; Yang et al. 2023, 2312.06635"

    def __init__(self, geometry: Geometry, *, decay: Decay = "head", form: Form = "auto"):
        super().__init__(geometry)
        self.form = form
        self.rotary_ok = "every coordinate of its keys decays by itself" if decay == "feature" else True
        self.decay: nn.Module | None = None
        if decay == "token":
            self.decay = TokenDecay(geometry)
        if decay == "feature":
            self.decay = nn.Sequential(nn.Linear(geometry.dim, RANK, bias=False), nn.Linear(RANK, geometry.dim))
        self.scale = nn.Parameter(torch.ones(geometry.head_dim))
        self.gate = nn.Linear(geometry.dim, geometry.dim, bias=False)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        keys, values, log_decay = self._written(k, v, x)
        mixed = decayed_sums(q, keys, values, log_decay, form=self.form, keep=keep)
        return self._read(mixed, x[:, -q.shape[-2] :]).to(v.dtype)

    def start(self, batch: int) -> State:
        (like,) = to_float32(self.qkv.weight)
        return (like.new_zeros(batch, self.geometry.heads, self.geometry.head_dim, self.geometry.head_dim),)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = decayed_step(q, *self._written(k, v, x), state)
        return self._read(mixed, x).to(v.dtype), state

    def _written(self, k: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """s k and v (B, H, N, D), and log a (B, H, N, 1 or D), in float32 at least."""
        k, v = to_float32(k, v)
        if self.decay is None:
            head = torch.arange(self.geometry.heads, device=k.device, dtype=k.dtype)
            return k, v, torch.log1p(-(2.0 ** (-5 - head)))[:, None, None].expand(*k.shape[:-1], 1)
        if isinstance(self.decay, TokenDecay):
            log_decay, steps = self.decay(x)
            return steps[..., None] * k, v, log_decay[..., None]
        (logits,) = to_float32(self._split(self.decay(x)))
        return k, v, F.logsigmoid(logits) / TEMPERATURE

    def _read(self, mixed: Tensor, x: Tensor) -> Tensor:
        normed = head_norm(mixed / math.sqrt(self.geometry.head_dim), self.scale)
        return normed * F.silu(self._split(self.gate(x)))
