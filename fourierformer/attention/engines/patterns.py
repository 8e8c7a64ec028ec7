"""Patterns of visible keys by position alone, as small values from which masks, tiles and pictures are made.

A pattern lists the runs of keys that a query at position i sees: first, first + step, first + 2 step, ... below stop.
A few runs per query describe every pattern, in memory that does not depend on the number of tokens:

    Band            |i - j| <= width step, and i - j a multiple of step
    Blocks          the block of i (tokens `size` s to `size` (s + 1) - 1), and some tokens before and after it
    Residue         j = i modulo step
    LastOfBlocks    the last `count` tokens of every block
    First           the first `count` tokens see all and are seen by all
    Listed          blocks from a table (drawn at random)
    GridTiles       the square of patches that i lies in, and a margin of patches around it
    Union           the keys of all its parts

Positions count from 0 at the first token after the prefix (class token, registers), so blocks begin there for inputs of
any length. visibility.py adds the rules that hold for every pattern.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 64  # queries that are computed together, where a pattern has no blocks of its own


class Run(NamedTuple):
    """The keys first, first + step, ... below stop of each query; none where stop <= first."""

    first: Tensor
    stop: Tensor
    step: int = 1


class Pattern:
    """The keys of one head."""

    @property
    def reach(self) -> int | None:
        """The largest distance to a visible past key other than the `first` ones; None where it is unbounded."""
        return None

    @property
    def first(self) -> int:
        return 0

    @property
    def tile(self) -> int:
        """The number of queries that are computed together, in the order of `neighbours`."""
        return TILE

    @property
    def consecutive(self) -> bool:
        """Whether neighbouring queries share most of their keys."""
        return True

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        """Runs of the queries at positions i, any shape, among `tokens`."""
        raise TypeError(f"{type(self).__name__} does not define runs()")

    def neighbours(self, i: Tensor) -> Tensor:
        """A number per query; queries with the same number share most of their keys."""
        return torch.zeros_like(i)


@dataclass(frozen=True)
class Band(Pattern):
    width: int
    step: int = 1

    @property
    def reach(self) -> int:
        return self.width * self.step

    @property
    def consecutive(self) -> bool:
        return self.step == 1

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        return [Run(i - self.reach, i + self.reach + 1, self.step)]

    def neighbours(self, i: Tensor) -> Tensor:
        return i % self.step


@dataclass(frozen=True)
class Blocks(Pattern):
    size: int
    before: int = 0
    after: int = 0

    @property
    def reach(self) -> int:
        return self.size - 1 + self.before

    @property
    def tile(self) -> int:
        return self.size * max(1, 16 // self.size)  # several at once where they are tiny

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        start = i - i % self.size
        return [Run(start - self.before, start + self.size + self.after)]


@dataclass(frozen=True)
class Residue(Pattern):
    step: int
    consecutive = False

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        return [Run(i % self.step, torch.full_like(i, tokens), self.step)]

    def neighbours(self, i: Tensor) -> Tensor:
        return i % self.step


@dataclass(frozen=True)
class LastOfBlocks(Pattern):
    size: int
    count: int

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        columns = range(self.size - self.count, self.size)
        return [Run(torch.full_like(i, c), torch.full_like(i, tokens), self.size) for c in columns]


@dataclass(frozen=True)
class First(Pattern):
    count: int
    reach = 0

    @property
    def first(self) -> int:
        return self.count

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        return [Run(torch.zeros_like(i), torch.where(i < self.count, tokens, self.count))]


@dataclass(frozen=True, eq=False)
class Listed(Pattern):
    """Query i sees the blocks of `size` tokens that row i // size of the table (rows, blocks) lists; -1 is no block."""

    table: Tensor
    size: int = 1

    @property
    def tile(self) -> int:
        return self.size

    @property
    def consecutive(self) -> bool:
        return self.size > 1

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        blocks = self.table.to(i.device)[i // self.size].unbind(-1)
        return [Run(self.size * b, torch.where(b < 0, -self.size, self.size * (b + 1))) for b in blocks]


@dataclass(frozen=True)
class GridTiles(Pattern):
    """Patches of an image, row by row: the square of `side` x `side` that i lies in, grown by `memory` to all sides."""

    columns: int
    side: int
    memory: int
    consecutive = False

    @property
    def tile(self) -> int:
        return self.side**2

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        row, column = i // self.columns, i % self.columns
        top, left = row - row % self.side - self.memory, column - column % self.side - self.memory
        right = (left + self.side + 2 * self.memory).clamp_max(self.columns)
        left = left.clamp_min(0)
        starts = [(top + r) * self.columns for r in range(self.side + 2 * self.memory)]
        return [Run(s + left, s + right) for s in starts]  # rows above the grid end before token 0

    def neighbours(self, i: Tensor) -> Tensor:
        return i // self.columns // self.side * self.columns + i % self.columns // self.side


@dataclass(frozen=True)
class Union(Pattern):
    """The keys of all parts; the first part decides which queries are computed together."""

    parts: tuple[Pattern, ...]

    @property
    def reach(self) -> int | None:
        return furthest(self.parts)

    @property
    def first(self) -> int:
        return max(part.first for part in self.parts)

    @property
    def tile(self) -> int:
        return self.parts[0].tile

    @property
    def consecutive(self) -> bool:
        return all(part.consecutive for part in self.parts)

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        return [run for part in self.parts for run in part.runs(i, tokens)]

    def neighbours(self, i: Tensor) -> Tensor:
        return self.parts[0].neighbours(i)


def furthest(patterns: Sequence[Pattern]) -> int | None:
    reaches = [pattern.reach for pattern in patterns]
    return max(reach for reach in reaches if reach is not None) if None not in reaches else None
