"""Softmax over a selection: the keys most similar to a query, the least uniform queries, or prototypes of queries."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.weighted import WeightedAttention, scaled_logits, visible_softmax
from fourierformer.errors import check_range
from fourierformer.seeds import seed_of


def largest(x: Tensor, count: int) -> Tensor:
    """True for the `count` largest numbers of each row; ties are broken arbitrarily."""
    chosen = torch.zeros_like(x, dtype=torch.bool)
    return chosen.scatter(-1, x.topk(min(count, x.shape[-1]), dim=-1).indices, True)


@register("topk", "softmax over the keys most similar to the query")
class TopK(WeightedAttention):
    """softmax over the `keys` visible keys with the largest q.k: the simplest content-based sparse attention (Lin et
    al. 2022, arXiv 2106.04554, section 4.1.2).

    Every query selects among its visible keys, so the future does not leak. All logits are computed: no time is saved.
    """

    rotary_ok = True
    source = "Zhao et al. 2019, arXiv 1912.11637"

    def __init__(self, geometry: Geometry, *, keys: int = 32):
        super().__init__(geometry)
        check_range("attention.keys", keys, 1)
        self.keys = keys

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        logits = scaled_logits(q, k)
        chosen = largest(logits.detach().masked_fill(~visible, -math.inf), self.keys)
        return visible_softmax(logits, visible & chosen)


@register("informer", "softmax for the queries with weights far from uniform, the mean of the values for others")
class Informer(WeightedAttention):
    """ProbSparse attention: of n queries the u = ceil(factor ln n) with the largest M_i = max_j s_ij - mean_j s_ij,
    s = q.k / sqrt(D), get their softmax; the others weigh all visible keys equally.

    M is taken over all visible keys: the paper's estimate from a sample of keys saves time, but is random. The paper's
    choice compares queries over the whole sequence, which leaks future tokens even under a causal mask. In a causal
    model query i, which sees n keys, is therefore chosen if it is among the ceil(factor ln n) largest of queries 0..i;
    the first queries always are.
    """

    rotary_ok = True
    partial_queries = False
    cross_ok = "it compares the queries with each other, so no query could be answered without the others"
    state = "2 N C + N H"
    source = "Zhou et al. 2021, arXiv 2012.07436"

    def __init__(self, geometry: Geometry, *, factor: float = 5.0):
        super().__init__(geometry)
        check_range("attention.factor", factor, 0, above_low=True)
        self.factor = factor

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        logits = scaled_logits(q, k)
        count = visible.sum(-1)  # (B, 1, N or 1)
        chosen = self._chosen(logits.detach(), visible, count)[..., None]
        uniform = visible.to(logits.dtype) / count.clamp_min(1)[..., None]
        return torch.where(chosen, visible_softmax(logits, visible), uniform)

    def _chosen(self, logits: Tensor, visible: Tensor, count: Tensor) -> Tensor:
        """The queries that get their softmax: (B, H, N) bool."""
        mean = logits.masked_fill(~visible, 0.0).sum(-1) / count.clamp_min(1)
        most = logits.masked_fill(~visible, -math.inf).amax(-1)
        # queries are the same tokens as keys: a query is compared with the tokens that it may see
        ahead = (most - mean)[..., None, :] > (most - mean)[..., None]
        rank = (ahead & visible).sum(-1)
        return rank < (self.factor * count.clamp_min(1).log()).ceil().clamp_min(1)

    def state_size(self, tokens: int) -> int:
        return super().state_size(tokens) + tokens * self.geometry.heads  # M of each query


@register("clustered", "queries in clusters: each attends as the mean of its cluster, exactly for the heaviest keys")
class Clustered(WeightedAttention):
    """Queries are clustered by `bits` random hyperplanes and `iterations` of Lloyd's algorithm in Hamming distance; a
    cluster's mean query has the weights A_c = softmax(Q_c k^T / sqrt(D)), shared by all its members.

    Improved form (`keys` > 0): for the `keys` keys with the largest A_c, of total mass m, a member has m times its own
    softmax over them. `keys` = 0 is the plain form. The initial centroids are evenly spaced queries.
    """

    rotary_ok = "it clusters queries by fixed random hyperplanes"
    causal_ok = "the mean of a cluster mixes queries of later tokens into earlier ones"
    cross_ok = "queries are answered by clusters, so no query could be answered without the others"
    partial_queries = False
    source = "Vyas et al. 2020, arXiv 2007.04825"
    planes: Tensor

    def __init__(self, geometry: Geometry, *, clusters: int = 25, keys: int = 32, bits: int = 63, iterations: int = 10):
        super().__init__(geometry)
        for knob, value, least in (("clusters", clusters, 1), ("keys", keys, 0), ("bits", bits, 1)):
            check_range(f"attention.{knob}", value, least)
        check_range("attention.iterations", iterations, 0)
        self.clusters, self.keys, self.iterations = clusters, keys, iterations
        generator = torch.Generator().manual_seed(seed_of("clustered", geometry.seed, geometry.layer))
        self.register_buffer("planes", torch.randn(geometry.heads, bits, geometry.head_dim + 1, generator=generator))

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        kept = visible[:, :, 0]  # (B, 1, N): bidirectional, so all queries see the same keys
        member = F.one_hot(self.cluster(q.detach(), kept), self.clusters).to(q.dtype) * kept[..., None]
        means = member.mT @ q / member.sum(-2)[..., None].clamp_min(1)
        logits = scaled_logits(means, k)
        shared = visible_softmax(logits, visible)
        if not self.keys:
            return member @ shared
        # by logits: weights far below the largest are all 0
        top = largest(logits.detach().masked_fill(~visible, -math.inf), self.keys) & visible
        mass = member @ (shared * top).sum(-1, keepdim=True)
        own = visible_softmax(scaled_logits(q, k), member @ top.to(q.dtype) > 0)
        return mass * own + member @ (shared * ~top)

    def cluster(self, q: Tensor, kept: Tensor) -> Tensor:
        """The cluster of each query, (B, H, N): q (B, H, N, D), kept (B, 1, N), False for padding."""
        bits = torch.where(F.pad(q, (0, 1), value=1.0) @ self.planes.to(q.dtype).mT > 0, 1.0, -1.0) * kept[..., None]
        centroids = self._first(bits, kept)
        for _ in range(self.iterations):
            member = F.one_hot((bits @ centroids.mT).argmax(-1), self.clusters).to(bits.dtype)
            votes = member.mT @ bits
            centroids = torch.where(votes == 0, centroids, votes.sign())
        return (bits @ centroids.mT).argmax(-1)

    def _first(self, bits: Tensor, kept: Tensor) -> Tensor:
        """The bits of evenly spaced queries without padding: (B, H, clusters, bits)."""
        count, order = kept.sum(-1, keepdim=True), kept.cumsum(-1) - 1
        wanted = torch.arange(self.clusters, device=kept.device) * count // self.clusters  # (B, 1, clusters)
        place = ((order[:, :, None] == wanted[..., None]) & kept[:, :, None]).to(bits.dtype)
        return place @ bits
