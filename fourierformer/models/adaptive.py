"""Tied softmax over a large vocabulary: frequent words in the head, rare ones in clusters (Grave et al. 2017).

Token ids are sorted by falling frequency. With cut-offs (20k, 40k, 200k) the head predicts the first 20,000 words and
three cluster tokens; a rare word costs log p(cluster) + log p(word | cluster), and only rows whose target is rare
compute that cluster. Without cut-offs this is a plain softmax. The weight is the input embedding (tied, div_val 1).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TiedAdaptiveSoftmax(nn.Module):
    def __init__(self, vocab_size: int, dim: int, cutoffs: list[int] | tuple[int, ...] = ()):
        super().__init__()
        inner = [c for c in cutoffs if c < vocab_size]
        self.edges = [0, *inner, vocab_size]  # cluster c holds ids edges[c] .. edges[c+1]-1; cluster 0 is the shortlist
        self.clusters = len(inner)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        if self.clusters:
            self.cluster_weight = nn.Parameter(torch.empty(self.clusters, dim))
            self.cluster_bias = nn.Parameter(torch.zeros(self.clusters))

    def split(self, targets: Tensor) -> list[Tensor]:
        """Row numbers whose target lies in tail cluster 1, 2, ...; cheap on a CPU tensor, a host sync on a GPU one."""
        return [
            ((targets >= low) & (targets < high)).nonzero().squeeze(1)
            for low, high in zip(self.edges[1:-1], self.edges[2:], strict=True)
        ]

    def nll(self, hidden: Tensor, targets: Tensor, weight: Tensor, rows: list[Tensor] | None = None) -> Tensor:
        """-log p(target) per row: hidden (n, dim), targets (n,) -> (n,) float32.

        `rows` is split(targets) where the caller has it (computed before the transfer to the GPU).
        """
        rows = self.split(targets) if rows is None else rows
        head_target = targets
        for cluster, index in enumerate(rows):
            head_target = head_target.index_fill(0, index, self.edges[1] + cluster)
        nll = F.cross_entropy(self._head(hidden, weight).float(), head_target, reduction="none")
        for cluster, index in enumerate(rows, start=1):
            if len(index):
                logits = self._tail(hidden.index_select(0, index), weight, cluster).float()
                tail_target = targets.index_select(0, index) - self.edges[cluster]
                nll = nll.index_add(0, index, F.cross_entropy(logits, tail_target, reduction="none"))
        return nll

    def log_probabilities(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """log p of every word: (n, dim) -> (n, vocab_size). For generation and as the tests' plain reference."""
        head = self._head(hidden, weight).float().log_softmax(-1)
        shortlist = self.edges[1]
        parts = [head[:, :shortlist]]
        for cluster in range(1, self.clusters + 1):
            tail = self._tail(hidden, weight, cluster).float().log_softmax(-1)
            parts.append(head[:, shortlist + cluster - 1, None] + tail)
        return torch.cat(parts, dim=-1)

    def _head(self, hidden: Tensor, weight: Tensor) -> Tensor:
        weight, bias = weight[: self.edges[1]], self.bias[: self.edges[1]]
        if self.clusters:
            weight, bias = torch.cat([weight, self.cluster_weight]), torch.cat([bias, self.cluster_bias])
        return F.linear(hidden, weight, bias)

    def _tail(self, hidden: Tensor, weight: Tensor, cluster: int) -> Tensor:
        low, high = self.edges[cluster], self.edges[cluster + 1]
        return F.linear(hidden, weight[low:high], self.bias[low:high])
