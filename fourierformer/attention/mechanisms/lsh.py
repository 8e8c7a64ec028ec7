"""Attention within hash buckets (Reformer): tokens whose queries have similar directions attend to each other."""

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Projected
from fourierformer.attention.engines.features import unit_norm
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits, visible_softmax
from fourierformer.errors import SetupError, check_range
from fourierformer.seeds import seed_of
from fourierformer.transfer import to_device

ITSELF = -1e5  # the logit of a token with itself: decisive only without another token


@register("lsh", "softmax among tokens with the same hash in at least one of several rounds; keys = unit-norm queries")
class LSH(WeightedAttention):
    """Keys are k_j = q_j / |q_j|. In each round r a token has the hash argmax [x R_r, -x R_r], one of `buckets`, with a
    random rotation R_r (D, buckets / 2) per head; query i attends to all j with its hash in some round (the paper's sum
    over rounds with repeated pairs counted once), and to itself only without another such token.

    A token's hash depends on itself alone, so the future does not leak. (The paper's sorted chunks truncate buckets,
    which depends on other tokens.) `rehash`: new rotations in every training step.

    Saves neither time nor memory here: hashes only mask the matrix of all weights. Sorting could save little, since the
    number of buckets is fixed: a query meets 1 - (1 - 1 / buckets)^rounds of all tokens, 23 % at the defaults, if all
    buckets are equally full.
    """

    rotary_ok = "it hashes queries by fixed random rotations"
    qk_norm_ok = "its keys are its queries at unit norm"
    cross_ok = "its keys are its own queries (one projection for both), and hashes compare tokens of one sequence"
    cost, state, source = "N² C (hashes as a mask)", "2 N C", "Kitaev et al. 2020, arXiv 2001.04451"
    rotations: Tensor

    def __init__(self, geometry: Geometry, *, buckets: int = 16, rounds: int = 4, rehash: bool = True):
        super().__init__(geometry)
        check_range("attention.rounds", rounds, 1)
        if buckets < 2 or buckets % 2:
            raise SetupError(f"attention.buckets must be even, directions and their opposites, got {buckets}")
        self.buckets, self.rounds, self.rehash = buckets, rounds, rehash
        self.qkv = nn.Linear(geometry.dim, 2 * geometry.dim, bias=geometry.bias)
        self.register_buffer("rotations", self._draw(0))

    def begin_step(self, step: int) -> None:
        if self.rehash:
            (drawn,) = to_device(self.rotations.device, self._draw(step))
            self.rotations.copy_(drawn)

    def _draw(self, number: int) -> Tensor:
        geometry = self.geometry
        generator = torch.Generator().manual_seed(seed_of("lsh", geometry.seed, geometry.layer, number))
        shape = (self.rounds, geometry.heads, geometry.head_dim, self.buckets // 2)
        return torch.randn(shape, generator=generator)

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        q, v = (self._split(part) for part in self.qkv(x).chunk(2, dim=-1))
        return q if last is None else q[:, :, -last:], unit_norm(q).to(q.dtype), v

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        itself = torch.eye(k.shape[-2], dtype=torch.bool, device=q.device)[-q.shape[-2] :]
        together = (self.hashes(q)[..., None] == self.hashes(k)[..., None, :]).any(0) | itself
        return visible_softmax(scaled_logits(q, k).masked_fill(itself, ITSELF), visible & together)

    def state_size(self, tokens: int) -> int:
        return 2 * tokens * self.geometry.dim

    def hashes(self, x: Tensor) -> Tensor:
        """(rounds, B, H, N), 0 .. buckets - 1."""
        rotated = x.detach() @ self.rotations.to(x.dtype)[:, None]
        return torch.cat([rotated, -rotated], dim=-1).argmax(-1)
