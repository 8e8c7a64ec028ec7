"""Sparse Sinkhorn attention: each block of queries attends to the block of keys that a matching assigns to it."""

from typing import Literal

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.noise import uniform
from fourierformer.attention.engines.recurrence import in_chunks
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits, visible_softmax
from fourierformer.errors import SetupError, check_range
from fourierformer.seeds import seed_of

NEVER = -1e30  # the logit of a pair of blocks that cannot be matched
LEAST = 1e-30  # share of a slot: the gradient of a quotient by a smaller one may be infinite


def doubly_stochastic(logits: Tensor, possible: Tensor, iterations: int) -> Tensor:
    """Sinkhorn's normalisation of exp(logits), rows and columns in turn, in logarithms; 0 where not possible."""
    logits = logits.masked_fill(~possible, NEVER)
    for _ in range(iterations):
        for dim in (-1, -2):
            logits = (logits - logits.logsumexp(dim, keepdim=True)).masked_fill(~possible, NEVER)
    return logits.exp().masked_fill(~possible, 0.0)


@register("sinkhorn", "each block of queries attends to the block of keys that a soft permutation assigns to it")
class Sinkhorn(WeightedAttention):
    """The sequence is cut into blocks of `block` tokens. S_ij is the share of block j of the keys in block i of the
    queries; queries of block i attend to sum_j S_ij k_j, token by token of the blocks, with values sorted likewise, and
    with `own_block` to the tokens of their own block too.

    Bidirectional: S is the matrix of q_i.k_j / sqrt(D) of the blocks' means, with Gumbel noise in training, over
    `temperature`, made doubly stochastic by `iterations` of Sinkhorn's normalisation. (The paper scores blocks by a
    network with one output per block; inner products apply to any number of blocks.)
    Causal: normalised columns would leak future tokens. S_i is a softmax over the blocks before i, scored by the mean
    of the queries up to the first token of block i. The first block has no other, so it needs its own.

    Differs from the source also in the bidirectional default, which leaves the own block out (`own_block=true` has it).
    """

    rotary_ok = True
    draws = True
    partial_queries = False
    cross_ok = "it matches blocks of queries with as many blocks of keys of the same sequence"
    cost, state = "N² C (blocks as a matrix)", "2 N C + C"
    source = "Tay et al. 2020, arXiv 2002.11296"
    key: Tensor

    def __init__(
        self, geometry: Geometry, *, block: int = 16, own_block: bool | Literal["auto"] = "auto",
        temperature: float = 0.75, iterations: int = 8,
    ):  # fmt: skip
        super().__init__(geometry)
        check_range("attention.block", block, 1)
        check_range("attention.iterations", iterations, 1)
        check_range("attention.temperature", temperature, 0, above_low=True)
        if geometry.causal and own_block is False:
            problem = "leaves the first block of a causal model without keys"
            raise SetupError(f"attention.own_block=false {problem}: use true or auto")
        self.block, self.temperature, self.iterations = block, temperature, iterations
        self.own_block = geometry.causal if own_block == "auto" else own_block
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)
        self._rows: Tensor | None = None  # numbers in the global batch; None = 0, 1, 2, ...
        self.begin_step(0)

    def begin_step(self, step: int) -> None:
        self.key.fill_(seed_of("sinkhorn", self.geometry.seed, self.geometry.layer, step))

    def begin_rows(self, numbers: Tensor) -> None:
        self._rows = numbers

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        tokens, size = k.shape[-2], self.block
        kept = in_chunks(visible.any(-2)[..., None], size)[..., 0]  # (B, 1, blocks, size)
        q_blocks, k_blocks = in_chunks(q, size), in_chunks(k, size) * kept[..., None]
        causal = self.geometry.causal
        sort = self.causal_matching(q, k_blocks, kept) if causal else self.matching(q_blocks, k_blocks, kept)
        # token t of block j in slot t of block i; a slot that some blocks leave empty takes its share from the others
        shares = sort[..., None] * kept.to(q.dtype)[:, :, None]  # (B, H, i, j, t)
        filled = shares.sum(3, keepdim=True)
        shares = shares / filled.where(filled > 0, 1.0).clamp_min(LEAST) * sort.sum(-1)[..., None, None]
        sorted_keys = torch.einsum("bhijt,bhjtd->bhitd", shares, k_blocks)
        seen = filled[:, :, :, 0] > 0
        logits, mask = scaled_logits(q_blocks, sorted_keys), seen[..., None, :].expand(-1, -1, -1, size, -1)
        if self.own_block:
            own = kept[..., None, :].expand_as(mask)
            if causal:
                own = own & torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
            logits, mask = torch.cat([logits, scaled_logits(q_blocks, k_blocks)], -1), torch.cat([mask, own], -1)
        weights = visible_softmax(logits, mask)
        placed = torch.einsum("bhist,bhijt->bhisjt", weights[..., :size], shares)
        if self.own_block:
            identity = torch.eye(kept.shape[-2], dtype=q.dtype, device=q.device)
            placed = placed + torch.einsum("bhist,ij->bhisjt", weights[..., size:], identity)
        return placed.flatten(4, 5).flatten(2, 3)[:, :, :tokens, :tokens]

    def state_size(self, tokens: int) -> int:
        return super().state_size(tokens) + self.geometry.dim  # the sum of the queries

    def matching(self, q: Tensor, k: Tensor, kept: Tensor) -> Tensor:
        """S (B, H, blocks, blocks) of a bidirectional model, from blocks of q and k without padding (`kept`)."""
        counts = kept.sum(-1, keepdim=True).clamp_min(1)
        scores = scaled_logits((q * kept[..., None]).sum(-2) / counts, k.sum(-2) / counts)
        if self.training:
            scores = scores + self._gumbel(scores)
        some = kept.any(-1)
        return doubly_stochastic(scores / self.temperature, some[..., None] & some[..., None, :], self.iterations)

    def causal_matching(self, q: Tensor, k: Tensor, kept: Tensor) -> Tensor:
        real = kept.flatten(-2)[..., : q.shape[-2], None].to(q.dtype)
        so_far = (q * real).cumsum(-2) / real.cumsum(-2).clamp_min(1)
        scores = scaled_logits(so_far[:, :, :: self.block], k.sum(-2) / kept.sum(-1, keepdim=True).clamp_min(1))
        before = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(-1)
        return visible_softmax(scores / self.temperature, before & kept.any(-1)[..., None, :])

    def _gumbel(self, scores: Tensor) -> Tensor:
        """One number per head and pair of blocks, whatever the length that the batch is padded to."""
        rows = torch.arange(len(scores), device=scores.device) if self._rows is None else self._rows
        blocks = scores.shape[-1]
        most = max(blocks, -(-self.geometry.length // self.block))
        u = uniform(self.key, rows, scores.shape[1], most, most)[..., :blocks, :blocks]
        return -(-u.log()).log().to(scores.dtype)
