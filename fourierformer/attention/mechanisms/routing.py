"""Routing attention: queries and keys are clustered by k-means; softmax within each cluster."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Keep
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits, visible_softmax
from fourierformer.errors import SetupError, check_range
from fourierformer.seeds import seed_of


def unit(x: Tensor) -> Tensor:
    """Layer normalisation without scale and shift, divided by sqrt(D): norm 1, as the paper routes."""
    return F.layer_norm(x, x.shape[-1:]) / x.shape[-1] ** 0.5


@register("routing", "softmax among the queries and keys of one cluster of an online k-means; some heads are local")
class Routing(WeightedAttention):
    """A query belongs to the centroid with the largest inner product (of `unit` vectors) and attends

    * in a causal model to itself and to earlier keys of the same centroid;
    * otherwise to the ceil(M / clusters) keys nearest to its centroid, so that all clusters have one size.

    The paper's clusters also choose their queries, which leaves some queries without a cluster, and compares tokens of
    a causal model with later ones: a measured leak. It ties keys to queries there, which is not necessary here.
    The first `local_heads` heads (null: half of them, as in the paper) attend to the `window` tokens to each side.

    Training: after every step mu <- unit(decay mu + (1 - decay) s), s = (sum of its queries + sum of its keys) / 2 per
    sequence, averaged over the global batch (the paper's update, projected to the unit sphere). The loss of each row
    has commitment * |x - mu|^2 added, averaged over heads, queries and keys.

    Differs from the source also in the logits, of q and k as projected (there of the vectors that are routed, `unit`),
    and in the commitment loss, which its equations lack.
    """

    rotary_ok = "it compares queries and keys with learned centroids"
    adds_loss = True
    cross_ok = "its local heads look around a query's own position, and its centroids are learned from one sequence"
    source = "Roy et al. 2021, arXiv 2003.05997"
    centroids: Tensor
    sums: Tensor
    rows: Tensor

    def __init__(
        self, geometry: Geometry, *, clusters: int = 16, local_heads: int | None = None, window: int = 32,
        decay: float = 0.999, commitment: float = 1e-4,
    ):  # fmt: skip
        super().__init__(geometry)
        self.local_heads = geometry.heads // 2 if local_heads is None else local_heads
        check_range("attention.clusters", clusters, 1)
        check_range("attention.window", window, 0)
        if not 0 <= self.local_heads < geometry.heads:
            must = f"leave at least one of model.heads={geometry.heads}"
            raise SetupError(f"attention.local_heads must {must}, got {local_heads}")
        check_range("attention.decay", decay, 0, 1)
        check_range("attention.commitment", commitment, 0)
        self.clusters, self.window, self.decay, self.commitment = clusters, window, decay, commitment
        generator = torch.Generator().manual_seed(seed_of("routing", geometry.seed, geometry.layer))
        shape = (geometry.heads - self.local_heads, clusters, geometry.head_dim)
        self.register_buffer("centroids", F.normalize(torch.randn(shape, generator=generator), dim=-1))
        # over the rows of this step: s of each cluster, and the number of rows
        self.register_buffer("sums", torch.zeros(shape), persistent=False)
        self.register_buffer("rows", torch.zeros(()), persistent=False)
        self._distance: Tensor | None = None  # (B,): of the last forward pass in training

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_distance": None}  # torch copies no tensor with a gradient

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        if self.training:
            self._add_statistics(q, k, keep)
        return super().mix(q, k, v, x, keep=keep, cross=cross)

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        local = self.local_heads
        routed = self._same_cluster(q[:, local:], k[:, local:], visible)
        if local:
            position = torch.arange(k.shape[-2], device=k.device)
            near = (position - position[-q.shape[-2] :, None]).abs() <= self.window
            near, routed = torch.broadcast_tensors(near, routed)
            routed = torch.cat([near[:, :1].expand(-1, local, -1, -1), routed], dim=1)
        return visible_softmax(scaled_logits(q, k), visible & routed)

    def _same_cluster(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        """The keys of the query's centroid: boolean (B, heads, N, M)."""
        similar = self._similarity(k)
        of_query = self._similarity(q).argmax(-1)
        if self.geometry.causal:  # independent of later keys
            itself = torch.eye(k.shape[-2], dtype=torch.bool, device=q.device)[-q.shape[-2] :]
            return (of_query[..., None] == similar.argmax(-1)[..., None, :]) | itself
        similar = similar.mT.masked_fill(~visible, -torch.inf)  # (B, heads, clusters, M)
        size = -(-visible.sum(-1, keepdim=True) // self.clusters)
        rank = torch.argsort(similar, dim=-1, descending=True, stable=True).argsort(-1)
        return (rank < size).gather(2, of_query[..., None].expand(-1, -1, -1, k.shape[-2]))

    def _similarity(self, x: Tensor) -> Tensor:
        """(B, heads, N, clusters)."""
        return unit(x.detach()) @ self.centroids.to(x.dtype).mT

    def begin_step(self, step: int) -> None:
        self.sums.zero_()
        self.rows.zero_()

    def _add_statistics(self, q: Tensor, k: Tensor, keep: Keep) -> None:
        """Add this batch to the update of the centroids, and store the distances of its rows to them."""
        with torch.autocast(q.device.type, enabled=False):
            distances = []
            for x, kept in ((q, None if q.shape[-2] != k.shape[-2] else keep), (k, keep)):
                x = unit(x[:, self.local_heads :].to(self.centroids.dtype))
                member = F.one_hot((x.detach() @ self.centroids.mT).argmax(-1), self.clusters).to(x.dtype)
                counts = x.new_ones(len(x), x.shape[-2]) if kept is None else kept.to(x.dtype)
                self.sums += 0.5 * torch.einsum("bhnc,bhnd,bn->hcd", member, x.detach(), counts)
                squares = (x - member @ self.centroids).square().sum(-1).mean(1)
                distances.append((squares * counts).sum(1) / counts.sum(1).clamp_min(1))
            self.rows += len(q)
            self._distance = (distances[0] + distances[1]) / 2

    def auxiliary_loss(self, losses: Tensor) -> Tensor:
        assert self._distance is not None  # after a forward pass in training
        distance, self._distance = self._distance, None
        return self.commitment * distance

    @torch.no_grad()
    def end_step(self, sum_over_processes: Callable[[Tensor], Tensor], good: Tensor) -> None:
        mean = sum_over_processes(self.sums) / sum_over_processes(self.rows).clamp_min(1)
        moved = F.normalize(self.decay * self.centroids + (1 - self.decay) * mean, dim=-1)
        moved = moved.where(moved.any(-1, keepdim=True), self.centroids)  # decay 0: a cluster without members stays
        self.centroids.copy_(torch.where(good > 0, moved, self.centroids))
