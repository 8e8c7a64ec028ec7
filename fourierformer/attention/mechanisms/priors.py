"""Softmax attention with a prior over positions added to its logits: a fixed slope, or a learned window."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits, visible_softmax
from fourierformer.errors import check_range
from fourierformer.marks import mark

OF_POSITIONS = "its prior is over the positions of one sequence, and between two sequences there is no distance"


class PriorAttention(WeightedAttention):
    """softmax(q.k / sqrt(D) + prior).

    Positions are those of a sequence in a causal model, those of the grid of patches, if any, in a bidirectional one.
    The prior is 0 to and from the prefix, which has no position on the grid.
    """

    cross_ok = OF_POSITIONS

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        self.grid, self.prefix = (None, 0) if geometry.causal else (geometry.grid, geometry.prefix)

    def prior(self, q: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """The prior of N queries, (B or 1, H, N, M): their q; positions (M, axes), the last N belong to the queries;
        visible (B, 1, N or 1, M). Without tokens of the prefix."""
        raise TypeError(f"{type(self).__name__} does not define prior()")

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        return visible_softmax(scaled_logits(q, k) + self.padded_prior(q, k, visible), visible)

    def padded_prior(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        """(B or 1, H, N, M), with tokens of the prefix."""
        queries, keys = q.shape[-2], k.shape[-2]
        prefix = min(self.prefix, keys)
        without = max(prefix - (keys - queries), 0)  # queries of the prefix
        shown = visible[..., without:, prefix:] if visible.shape[-2] > 1 else visible[..., prefix:]
        prior = self.prior(q[:, :, without:], self._positions(keys - prefix, q), shown)
        return F.pad(prior, (prefix, 0, without, 0))

    def distances(self, queries: int, positions: Tensor) -> Tensor:
        """(queries, M), of the last queries to all positions; on a grid Euclidean, in patches."""
        return (positions[len(positions) - queries :, None] - positions).square().sum(-1).sqrt()

    def _positions(self, tokens: int, like: Tensor) -> Tensor:
        position = torch.arange(tokens, device=like.device)
        axes = [position] if self.grid is None else [position // self.grid[1], position % self.grid[1]]
        return torch.stack(axes, dim=-1).to(like.dtype)


def alibi_slopes(heads: int) -> Tensor:
    """(heads,): 2^(-8/n), 2^(-16/n), ..., 2^-8 for n heads, n a power of 2 (section 3 of the paper); else the slopes of
    the next smaller power, then every other slope of twice as many, as in the authors' code."""

    def slopes(count: int) -> list[float]:
        return [2 ** (-8 * (h + 1) / count) for h in range(count)]

    power = 1 << (heads.bit_length() - 1)
    return torch.tensor(slopes(power) + slopes(2 * power)[::2][: heads - power])


@register("alibi", "softmax whose logits fall with the distance, linearly, with a slope of its own in every head")
class Alibi(PriorAttention):
    """softmax_j(q_i.k_j / sqrt(D) - m_h |i - j|) with fixed slopes m_h (ALiBi).

    In images the distance is Euclidean, in patches. Position embeddings remain, which the paper replaces.
    """

    rotary_ok = True
    source = "Press et al. 2022, arXiv 2108.12409"
    slopes: Tensor

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        self.register_buffer("slopes", alibi_slopes(geometry.heads), persistent=False)

    def prior(self, q: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        return -self.slopes.to(q.dtype)[:, None, None] * self.distances(q.shape[-2], positions)


@register("adaptive_span", "softmax in a window with soft edges, whose length every head learns at a price")
class AdaptiveSpan(PriorAttention):
    """w_ij = m_h(|i - j|) exp(q_i.k_j / sqrt(D)), divided by its sum; m_h(d) is 1 up to the span z_h and then falls,
    linearly, to 0 at z_h + ramp. The loss has penalty * (mean of z over heads) added.

    z = 0 at first and after every step at least 0, at most the length. In images the distance is Euclidean, in patches.
    Weights beyond the window are computed and masked: it saves nothing here.
    """

    rotary_ok = adds_loss = True
    cost, source = "N² C (windows as masks)", "Sukhbaatar et al. 2019, arXiv 1905.07799"

    def __init__(self, geometry: Geometry, *, ramp: int = 32, penalty: float = 2e-6):
        super().__init__(geometry)
        check_range("attention.ramp", ramp, 1)
        check_range("attention.penalty", penalty, 0)
        self.ramp, self.penalty = ramp, penalty
        self.span = nn.Parameter(torch.zeros(geometry.heads))  # in units of the length
        mark(self, "span", no_weight_decay=True)

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        prior = self.padded_prior(q, k, visible)
        return visible_softmax(scaled_logits(q, k) + prior, visible & (prior > torch.finfo(prior.dtype).min))

    def prior(self, q: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        reach = self.geometry.length * self.span.to(q.dtype)[:, None, None] + self.ramp
        mask = ((reach - self.distances(q.shape[-2], positions)) / self.ramp).clamp(0, 1)
        smallest = torch.finfo(q.dtype)
        return torch.where(mask > 0, mask.clamp_min(smallest.tiny).log(), smallest.min)

    def auxiliary_loss(self, losses: Tensor) -> Tensor:
        return (self.penalty * self.geometry.length * self.span.mean()).expand_as(losses)

    @torch.no_grad()
    def end_step(self, sum_over_processes: Callable[[Tensor], Tensor], good: Tensor) -> None:
        self.span.clamp_(0, 1)

    def diagnostics(self) -> dict[str, float]:
        return {"span": self.geometry.length * self.span.mean().item()}


@register("local_gaussian", "softmax with a Gaussian window added, whose centre and width each query predicts")
class LocalGaussian(PriorAttention):
    """softmax_j(q_i.k_j / sqrt(D) + G_ij), G_ij = -(j - P_i)^2 / (2 s_i^2) with s_i = D_i / 2.

    Centre P_i = n_i sigmoid(U_p.tanh(W q_i)) and window D_i = n_i sigmoid(U_d.tanh(W q_i)) are predicted from the query
    (the paper's "query-specific window"); n_i is the length of the sequence, or of the past in a causal model. Token j
    covers the positions from j to j + 1. Rows and columns of a grid have separate centres, widths and n.
    """

    rotary_ok = "it predicts its windows from the coordinates of the query"
    source = "Yang et al. 2018, arXiv 1810.10182"
    extent: Tensor

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        axes = 2 if self.grid else 1
        self.hidden = nn.Linear(geometry.head_dim, geometry.head_dim, bias=False)
        self.centre = nn.Linear(geometry.head_dim, axes, bias=False)
        self.window = nn.Linear(geometry.head_dim, axes, bias=False)
        if self.grid:
            self.register_buffer("extent", torch.tensor(self.grid, dtype=torch.float32), persistent=False)

    def prior(self, q: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        hidden = F.linear(q, self.hidden.weight.to(q.dtype)).tanh()
        if self.grid:
            extent = self.extent.to(positions.dtype)
        else:
            extent = (visible * (positions[:, 0] + 1)).amax(-1, keepdim=True).clamp_min(1)  # (B, 1, N, 1)
        parts = (F.linear(hidden, part.weight.to(q.dtype)) for part in (self.centre, self.window))
        centre, window = (extent * part.sigmoid() for part in parts)
        apart = (positions + 0.5 - centre[..., None, :]) / (window / 2).clamp_min(1e-2)[..., None, :]
        return -0.5 * apart.square().sum(-1)
