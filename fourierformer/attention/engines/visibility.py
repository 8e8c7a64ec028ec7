"""The visible keys of every token of a layer: patterns of its heads, prefix and causality, as runs, masks and lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from fourierformer.attention.engines.patterns import Pattern, Run, furthest


@dataclass(frozen=True)
class Visibility:
    """One pattern for all heads, or one for each. In addition, prefix tokens see all and are seen by all, a token sees
    itself, and in a causal model no query sees a later key."""

    patterns: Sequence[Pattern]
    heads: int
    causal: bool
    prefix: int = 0

    @property
    def reach(self) -> int | None:
        return furthest(self.patterns)

    @property
    def first(self) -> int:
        return self.prefix + max(pattern.first for pattern in self.patterns)

    def groups(self) -> list[tuple[slice, Pattern]]:
        """Slices of neighbouring heads with the same pattern."""
        if len(self.patterns) == 1:
            return [(slice(0, self.heads), self.patterns[0])]
        groups, start = [], 0
        for pattern, same in groupby(self.patterns):
            count = len(list(same))
            groups.append((slice(start, start + count), pattern))
            start += count
        return groups

    def runs(self, pattern: Pattern, i: Tensor, tokens: int) -> list[Run]:
        """Runs of the tokens at positions i of the input, prefix included."""
        prefix = self.prefix
        own = pattern.runs((i - prefix).clamp_min(0), tokens - prefix)
        runs = [Run(run.first + prefix, run.stop + prefix, run.step) for run in own]
        runs.append(Run(torch.zeros_like(i), torch.where(i < prefix, tokens, prefix)))
        runs.append(Run(i, i + 1))
        end = i + 1 if self.causal else torch.full_like(i, tokens)
        return [run._replace(stop=torch.minimum(run.stop, end)) for run in runs]

    def mask(self, queries: Tensor, keys: Tensor, tokens: int) -> Tensor:
        """Boolean (1 or heads, n, m), True = sees: positions `queries` (n,) and `keys` (m,) among `tokens`."""
        masks = [
            allowed(self.runs(pattern, queries[:, None], tokens), keys).expand(heads.stop - heads.start, -1, -1)
            for heads, pattern in self.groups()
        ]
        return torch.cat(masks) if len(masks) > 1 else masks[0][:1]

    def lists(self, pattern: Pattern, i: Tensor, tokens: int) -> Tensor:
        """The keys of each token i (n,), in any order, some of them twice: (n, most keys), padded with -1."""
        lists = []
        for run in self.runs(pattern, i, tokens):
            most = int(sizes(run).max())
            keys = run.first[:, None] + run.step * torch.arange(most, device=run.first.device)
            lists.append(keys.masked_fill((keys >= run.stop[:, None]) | (keys < 0), -1))
        return torch.cat(lists, dim=1)


def allowed(runs: list[Run], j: Tensor) -> Tensor:
    """Whether key j is in one of the runs."""
    inside = torch.zeros((), dtype=torch.bool, device=j.device)
    for first, stop, step in runs:
        here = (j >= first) & (j < stop)
        inside = inside | (here if step == 1 else here & ((j - first) % step == 0))
    return inside


def sizes(run: Run) -> Tensor:
    """The number of keys of a run, positions before the first token included."""
    return ((run.stop - run.first + run.step - 1) // run.step).clamp_min(0)
