"""Tied softmax over a large vocabulary, with frequent words in the head and rare ones in clusters (Grave et al. 2017).

Token ids are sorted by falling frequency. With cut-offs (20k, 40k, 200k) the head predicts the first 20,000 words and
three cluster tokens; a rare word costs log p(cluster) + log p(word | cluster), and only rows whose target is rare
compute that cluster. Without cut-offs this is a plain softmax. The weight is the input embedding (tied, div_val 1).
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.models.output_layer import at_least_float32, nll, total_nll


class TiedAdaptiveSoftmax(nn.Module):
    def __init__(self, vocab_size: int, dim: int, cutoffs: list[int] | tuple[int, ...] = ()):
        super().__init__()
        inner = [c for c in cutoffs if c < vocab_size]
        # Cluster c holds the ids edges[c] .. edges[c+1]-1; cluster 0 is the shortlist of frequent words.
        self.edges = [0, *inner, vocab_size]
        self.clusters = len(inner)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        if self.clusters:
            self.cluster_weight = nn.Parameter(torch.empty(self.clusters, dim))
            self.cluster_bias = nn.Parameter(torch.zeros(self.clusters))

    def rare_places(self, targets: Tensor) -> list[Tensor]:
        """Places in `targets` (n,) of the words of each tail cluster; cheap on a CPU tensor, a host sync on a GPU."""
        return [((targets >= low) & (targets < high)).nonzero().squeeze(1) for low, high in pairwise(self.edges[1:])]

    def nll(self, hidden: Tensor, targets: Tensor, weight: Tensor, rare: list[Tensor] | None = None) -> Tensor:
        """-log p(target) per row: hidden (n, dim), targets (n,) -> (n,), float32 at least.

        `rare` is rare_places(targets) where the caller has it (computed before the transfer to the GPU).
        """
        rare = self.rare_places(targets) if rare is None else rare
        head, *tails = self._parts(hidden, targets, weight, rare)
        losses = nll(*head)
        for index, tail in zip((index for index in rare if len(index)), tails, strict=True):
            losses = losses.index_add(0, index, nll(*tail))
        return losses

    def mean_nll(self, hidden: Tensor, targets: Tensor, weight: Tensor, rare: list[Tensor] | None = None) -> Tensor:
        """The mean of `nll`, for training: on a CPU it takes less time and memory than `nll`."""
        if hidden.device.type != "cpu":
            return self.nll(hidden, targets, weight, rare).mean()
        rare = self.rare_places(targets) if rare is None else rare
        parts = self._parts(hidden, targets, weight, rare)
        head = total_nll(*next(parts))
        return sum((total_nll(*tail) for tail in parts), start=head) / len(targets)

    def log_probabilities(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """log p of every word: (n, dim) -> (n, vocab_size). For generation, and the reference of the tests."""
        head, *tails = (at_least_float32(F.linear(hidden, *layer)).log_softmax(-1) for layer in self._layers(weight))
        shortlist = self.edges[1]
        parts = [head[:, :shortlist]]
        for cluster, tail in enumerate(tails):
            parts.append(head[:, shortlist + cluster, None] + tail)
        return torch.cat(parts, dim=-1)

    def _parts(self, hidden: Tensor, targets: Tensor, weight: Tensor, rare: list[Tensor]) -> Iterator[tuple]:
        """(hidden, weight, bias, target) of the head for all rows, then of each cluster for the rows whose target is in
        it: the loss of a row is the sum."""
        head_target = targets
        for cluster, index in enumerate(rare):
            head_target = head_target.index_fill(0, index, self.edges[1] + cluster)
        head, *tails = self._layers(weight)
        yield hidden, *head, head_target
        for tail, index, first in zip(tails, rare, self.edges[1:-1], strict=True):
            if len(index):
                yield hidden.index_select(0, index), *tail, targets.index_select(0, index) - first

    def _layers(self, weight: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of the head (the shortlist and the cluster tokens), then of each cluster.

        One split, not slices: autograd gives every slice a gradient of the size of the whole weight.
        """
        if not self.clusters:
            return [(weight, self.bias)]
        sizes = [high - low for low, high in pairwise(self.edges)]
        layers = list(zip(weight.split(sizes), self.bias.split(sizes), strict=True))
        head = zip(layers[0], (self.cluster_weight, self.cluster_bias), strict=True)
        weight, bias = (torch.cat(parts) for parts in head)
        return [(weight, bias), *layers[1:]]
