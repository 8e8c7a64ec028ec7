"""Sparse adaptive connection: a small recurrent network selects the keys of each query, trained by REINFORCE."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.noise import uniform
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits, visible_softmax
from fourierformer.errors import check_range
from fourierformer.seeds import seed_of

WIDTH = 32  # of the predictor
BASELINE_DECAY = 0.9


@register("sac", "experimental: an LSTM chooses the keys of each query, rewarded by the loss (REINFORCE)")
class SparseAdaptiveConnection(WeightedAttention):
    """Each query attends to itself and to `edges` other keys, the same in all heads. An LSTM selects them one after the
    other: h_0 = W k_i; key j has the probability softmax_j(h.(E k_j) / sqrt(width) + b_|i-j|) among the visible keys
    not yet selected; the selected key is the next input. Sampled in training, the most probable ones in evaluation.

    Experimental: the paper's predictor selects all edges of a sequence in 2 N `edges` sequential steps; here queries
    run in parallel. Scores of the candidates take `edges` N^2 products, so no time is saved.

    The selection has no gradient. Each row's loss has (loss - baseline) * log p added, log p the mean over queries of
    the log-probability of their edges: its gradient is REINFORCE's, over N. The baseline is the moving average of the
    loss over steps. No gradient flows from the predictor into the rest of the model.
    """

    rotary_ok = "its predictor reads the coordinates of the keys"
    longer_ok = False
    draws = adds_loss = True
    cross_ok = "its predictor connects the tokens of one sequence by their distance"
    cost, source = "N² (C + edges)", "Li et al. 2020, arXiv 2003.09833"
    key: Tensor
    baseline: Tensor
    seen: Tensor

    def __init__(self, geometry: Geometry, *, edges: int = 8):
        super().__init__(geometry)
        check_range("attention.edges", edges, 1)
        self.edges = edges
        self.enter = nn.Linear(geometry.dim, WIDTH)
        self.embed = nn.Linear(geometry.dim, WIDTH)
        # a single edge needs no next input, and DistributedDataParallel allows no parameter without a gradient
        self.cell = nn.LSTMCell(WIDTH, WIDTH) if edges > 1 else None
        self.by_distance = nn.Parameter(torch.zeros(geometry.length))
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)
        # moving sums of loss and of 1, whose ratio is the baseline; sums over the rows of this step
        self.register_buffer("baseline", torch.zeros(2))
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self._rows: Tensor | None = None  # their numbers in the global batch; None = 0, 1, 2, ...
        self._log_probability: Tensor | None = None  # (B,): of the last forward pass in training
        self.begin_step(0)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_log_probability": None}  # torch copies no tensor with a gradient

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        connected, log_probability = self.connections(q.shape[-2], k.detach(), visible[:, 0])
        if self.training:
            self._log_probability = log_probability
        return visible_softmax(scaled_logits(q, k), visible & connected[:, None])

    def connections(self, queries: int, k: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """The keys of each of the last queries, (B, N, M) bool, and the log-probability of the selection, (B,): k
        (B, H, M, D), visible (B or 1, N or 1, M)."""
        nodes = k.transpose(1, 2).flatten(-2).to(self.embed.weight.dtype)
        keys, position = self.embed(nodes), torch.arange(k.shape[-2], device=k.device)
        distance = (position[-queries:, None] - position).abs()
        connected = (distance == 0).expand(len(k), -1, -1) & visible
        left = visible & (distance > 0)
        h = self.enter(nodes[:, -queries:])
        cell = torch.zeros_like(h.flatten(0, 1))
        log_p = k.new_zeros(len(k), queries)
        for number in range(self.edges):
            p = visible_softmax((scaled_logits(h, keys) + self.by_distance[distance]).to(k.dtype), left)
            choice = self._choice(p.detach(), number)
            chosen = F.one_hot(choice, k.shape[-2]).bool() & left
            log_p = log_p + torch.where(chosen, p, 1.0).clamp_min(torch.finfo(p.dtype).tiny).log().sum(-1)
            connected, left = connected | chosen, left & ~chosen
            if self.cell is not None and number < self.edges - 1:
                chosen_keys = keys.gather(1, choice[..., None].expand(-1, -1, WIDTH))
                after, cell = self.cell(chosen_keys.flatten(0, 1), (h.flatten(0, 1), cell))
                h = after.view(h.shape)
        real = visible.any(-2).expand(len(k), -1)[:, -queries:]
        return connected, (log_p * real).sum(1) / real.sum(1).clamp_min(1)

    def _choice(self, p: Tensor, number: int) -> Tensor:
        """A key for each query, (B, N), sampled in training. Where no key is left, p is 0 and the result is ignored."""
        if not self.training:
            return p.argmax(-1)
        rows = torch.arange(len(p), device=p.device) if self._rows is None else self._rows
        u = uniform(self.key + number, rows, p.shape[1]).to(p.dtype)
        cumulative = p.cumsum(-1)
        return (cumulative < u[..., None] * cumulative[..., -1:]).sum(-1).clamp_max(p.shape[-1] - 1)

    def begin_step(self, step: int) -> None:
        self.key.fill_(seed_of("sac", self.geometry.seed, self.geometry.layer, step))
        self.seen.zero_()

    def begin_rows(self, numbers: Tensor) -> None:
        self._rows = numbers

    def auxiliary_loss(self, losses: Tensor) -> Tensor:
        assert self._log_probability is not None  # after a forward pass in training
        log_probability, self._log_probability = self._log_probability, None
        self.seen += torch.stack([losses.sum(), losses.new_full((), len(losses))]).to(self.seen.dtype)
        total, weight = self.baseline
        advantage = torch.where(weight > 0, losses - total / weight.clamp_min(1e-6), 0.0)
        return advantage * log_probability

    @torch.no_grad()
    def end_step(self, sum_over_processes: Callable[[Tensor], Tensor], good: Tensor) -> None:
        loss, rows = sum_over_processes(self.seen)
        new = torch.stack([loss / rows.clamp_min(1), torch.ones_like(loss)])
        moved = BASELINE_DECAY * self.baseline + (1 - BASELINE_DECAY) * new
        self.baseline.copy_(torch.where(good > 0, moved, self.baseline))
