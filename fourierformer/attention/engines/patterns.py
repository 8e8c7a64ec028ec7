"""Which keys a query sees by position alone: patterns as small values, from which masks, tiles and pictures are made.

A pattern says for a query at position i which runs of keys it sees: first, first + step, first + 2 step, ... below
stop. A few runs per query describe every pattern, in memory that does not depend on the number of tokens:

    Band            |i - j| <= width step, and i - j a multiple of step
    Blocks          the block of i (tokens `size` s to `size` (s + 1) - 1), and so many tokens before and after it
    Residue         j = i modulo step
    LastOfBlocks    the last `count` tokens of every block
    First           the first `count` tokens see all and are seen by all
    Listed          blocks from a table (drawn at random)
    GridTiles       the square of patches that i lies in, and so many patches around it
    Union           what any of its parts allows

Positions count from 0 at the first token after the prefix (class token, registers), so blocks begin there, however long
the input is. What holds for every pattern is added in visibility.py.
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
    """What one head sees."""

    @property
    def reach(self) -> int | None:
        """Keys further back than this are never seen, but for the `first` ones; None where there is no such limit."""
        return None

    @property
    def first(self) -> int:
        return 0

    @property
    def tile(self) -> int:
        """So many queries are computed together, in the order of `neighbours`."""
        return TILE

    @property
    def consecutive(self) -> bool:
        """Whether queries next to each other have most of their keys in common."""
        return True

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        """Of the queries at positions i, any shape, among so many tokens."""
        raise TypeError(f"{type(self).__name__} does not define runs()")

    def neighbours(self, i: Tensor) -> Tensor:
        """Queries with the same number here share most of their keys."""
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

    @property
    def consecutive(self) -> bool:
        return False

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

    @property
    def reach(self) -> int:
        return 0

    @property
    def first(self) -> int:
        return self.count

    def runs(self, i: Tensor, tokens: int) -> list[Run]:
        return [Run(torch.zeros_like(i), torch.where(i < self.count, tokens, self.count))]


@dataclass(frozen=True, eq=False)
class Listed(Pattern):
    """Query i sees the blocks of `size` tokens whose numbers stand in row i // size of the table (rows, blocks); -1
    stands for none."""

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

    @property
    def consecutive(self) -> bool:
        return False

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
    """The first part says which queries are computed together."""

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
