"""The delta rule: a memory that overwrites the value of a key, where linear attention adds to it.

    S_t = S_(t-1) + beta_t fk_t (v_t - S_(t-1)^T fk_t)^T,  o_t = S_t^T fq_t       (Schlag et al. 2021, arXiv 2102.11174)

The written rows u_t = beta_t (v_t - S_(t-1)^T fk_t) are a linear function of the rows before them:
u_t + beta_t sum_{j < t} (fk_t.fk_j) u_j = beta_t v_t, a triangular system, solved at once instead of token by token.
With N tokens, M features and D coordinates, the formula has three forms that agree to rounding:

* parallel: one system of N rows, N^2 (M + D) multiplications;
* chunk: systems of CHUNK rows, all solved together for [v, fk], then one matrix product with the memory per chunk;
  N M D + 64 N (M + D) multiplications, memory for N / 64 states of M D numbers;
* step: the recurrence.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, State, to_float32
from fourierformer.attention.engines.features import elu_features, orthogonal_gaussian, positive_exponents
from fourierformer.attention.engines.recurrence import PARALLEL_UP_TO, Form, in_chunks
from fourierformer.attention.mechanisms.dpfp import check_nu, dpfp_features
from fourierformer.seeds import seed_of

SUM_EPS = 1e-5  # added to the sum of features: those of dpfp can all be 0

Feature = Literal["dpfp", "elu", "performer"]


def delta_rule(fq: Tensor, fk: Tensor, v: Tensor, beta: Tensor, *, form: Form = "auto") -> Tensor:
    """Read the memory at the position of every query, causal: features fq, fk (B, H, N, M), values v (B, H, N, D),
    writing rates beta (B, H, N) -> (B, H, N, D).
    The memory is bounded while |fk_t|^2 beta_t <= 2; features that are positive and sum to 1 have |fk_t|^2 <= 1.
    """
    with torch.autocast(v.device.type, enabled=False):
        fq, fk, values, beta = to_float32(fq, fk, v, beta)
        if form == "parallel" or (form == "auto" and v.shape[-2] <= PARALLEL_UP_TO):
            mixed = (fq @ fk.mT).tril() @ _solved(fk, beta, values)
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


def _solved(fk: Tensor, beta: Tensor, values: Tensor) -> Tensor:
    """The rows u with u_t + beta_t sum_{j < t} (fk_t.fk_j) u_j = beta_t values_t, over the last two dimensions."""
    beta = beta[..., None]
    below = (beta * (fk @ fk.mT)).tril(-1)  # the ones of the diagonal are implied
    return torch.linalg.solve_triangular(below, beta * values, upper=False, unitriangular=True)


def _chunk_form(fq: Tensor, fk: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """delta_rule chunk by chunk. In a chunk that starts with memory S the right-hand side of the system is v - fk S, so
    its solution is that for v minus that for fk times S; neither depends on S."""
    tokens = v.shape[-2]
    fq, fk, v, beta = (in_chunks(t) for t in (fq, fk, v, beta[..., None]))
    for_v, for_fk = _solved(fk, beta[..., 0], torch.cat([v, fk], dim=-1)).split([v.shape[-1], fk.shape[-1]], dim=-1)
    inside = (fq @ fk.mT).tril()
    memory, mixed = torch.zeros_like(fk[:, :, 0].mT @ v[:, :, 0]), []
    # unbind, not x[:, :, c]: the gradient of each slice would be a tensor of full size, quadratic work in total
    for q, k, weights, own, past in zip(*(t.unbind(2) for t in (fq, fk, inside, for_v, for_fk)), strict=True):
        written = own - past @ memory
        mixed.append(q @ memory + weights @ written)
        memory = memory + k.mT @ written
    return torch.cat(mixed, dim=2)[:, :, :tokens]


@register("fast_weight", "a memory that overwrites: the delta rule, with a learned writing rate per head and token")
class FastWeight(Attention):
    """o_t = S_t^T phi(q_t) / sqrt(D) with S_t of the delta rule and beta_t = sigmoid(w.x_t) per head.

    phi is positive and divided by its sum, so that writes and reads are weighted averages over the rows of the memory,
    without a denominator. `dpfp` has 2 D nu features, `elu` D, `performer` about D log D random ones (divided by their
    sum, a softmax). No maps: the weights of the values depend on beta, hence on x.
    """

    full_ok = "the delta rule overwrites in the order of writing, and the patches of an image have no order"
    cross_ok = "a query reads the memory of its own position, and there is none in another sequence"
    padding_ok = True
    cost, state, source = "N M C, M = 2 D nu", "M C", "Schlag et al. 2021, arXiv 2102.11174"
    frequencies: Tensor  # of the performer's features

    def __init__(self, geometry: Geometry, *, feature: Feature = "dpfp", nu: int = 3, form: Form = "auto"):
        super().__init__(geometry)
        width = geometry.head_dim
        if feature == "dpfp":
            check_nu(nu, width)
        self.feature, self.nu, self.form = feature, nu, form
        self.beta = nn.Linear(geometry.dim, geometry.heads, bias=False)
        random = max(1, int(width * math.log(width)))
        self.features = {"dpfp": 2 * width * nu, "elu": width, "performer": random}[feature]
        if feature == "performer":
            generator = torch.Generator().manual_seed(seed_of("fast_weight", geometry.seed, geometry.layer))
            self.register_buffer("frequencies", orthogonal_gaussian(random, width, generator).float())

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        rates = self._rates(x)
        if keep is not None:  # padding writes nothing
            rates = rates.masked_fill(~keep[:, None], 0.0)
        mixed = delta_rule(self._features(q), self._features(k), v, rates, form=self.form)
        return mixed / math.sqrt(self.geometry.head_dim)

    def start(self, batch: int) -> State:
        (like,) = to_float32(self.qkv.weight)
        return (like.new_zeros(batch, self.geometry.heads, self.features, self.geometry.head_dim),)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = delta_step(self._features(q), self._features(k), v, self._rates(x), state)
        return mixed / math.sqrt(self.geometry.head_dim), state

    def _rates(self, x: Tensor) -> Tensor:
        """beta (B, H, N) from the layer's input (B, N, dim)."""
        (logits,) = to_float32(self.beta(x).transpose(1, 2))
        return logits.sigmoid()

    def _features(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            (x,) = to_float32(x)
            if self.feature == "performer":
                scaled = x * self.geometry.head_dim**-0.25
                return positive_exponents(scaled, self.frequencies).softmax(-1)
            features = dpfp_features(x, self.nu) if self.feature == "dpfp" else elu_features(x)
            return features / (features.sum(-1, keepdim=True) + SUM_EPS)
