"""Dot-product attention over visible keys: queries with common keys are grouped into tiles, their keys gathered.

A tile has some queries and the union of their keys; its weights are all computed, and those of invisible pairs masked.
With tiles of t queries and s keys N tokens take N s products and 2 N s / t gathered vectors instead of N^2 and N; for a
band of w to both sides s = t + 2 w.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention.base import Keep
from fourierformer.attention.engines.dot_product import masked_attention
from fourierformer.attention.engines.patterns import Pattern
from fourierformer.attention.engines.visibility import Visibility, allowed, sizes

LISTED = 2**20  # keys in lists at a time: a few tensors of 8 MiB
MULTIPLE = 8  # of the keys per tile: CUDA's kernels read masks in such pieces


@dataclass(frozen=True)
class Tiles:
    """T tiles of t queries and s keys. The last tile is filled up with the last query, the keys with key 0, masked."""

    queries: Tensor  # (T, t)
    keys: Tensor  # (T, s)
    mask: Tensor  # (T, t, s), True = sees

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Keep = None) -> Tensor:
        """q (B, H, n, D), k and v (B, H, N, D) -> (B, H, T t, D), tile by tile."""
        batch, heads = q.shape[:2]
        q, k, v = _gathered(q, self.queries), _gathered(k, self.keys), _gathered(v, self.keys)
        mask, without_keys = self.mask[None], None
        if keep is not None:
            mask = mask & keep[:, self.keys][:, :, None]
            mask = mask if len(keep) == 1 else mask.repeat_interleave(heads, dim=0)
            without_keys = ~mask.any(-1, keepdim=True)
        return masked_attention(q, k, v, mask, without_keys).unflatten(0, (batch, heads)).flatten(2, 3)

    def to(self, device: torch.device) -> "Tiles":
        return Tiles(self.queries.to(device), self.keys.to(device), self.mask.to(device))


def _gathered(x: Tensor, index: Tensor) -> Tensor:
    """(B, H, N, D) at the positions `index` (T, n) -> (B H, T, n, D)."""
    return x.index_select(2, index.flatten()).unflatten(2, index.shape).flatten(0, 1)


@dataclass(frozen=True)
class Group:
    """Heads with one pattern: their tiles, and the place of each query's result in them."""

    heads: slice
    tiles: list[Tiles]
    position: Tensor  # (n,)


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, groups: list[Group], keep: Keep = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over the keys that each query sees: (B, H, n, D)."""
    mixed = []
    for group in groups:
        h = group.heads
        results = [tiles.attend(q[:, h], k[:, h], v[:, h], keep) for tiles in group.tiles]
        mixed.append(torch.cat(results, dim=2).index_select(2, group.position))
    return torch.cat(mixed, dim=1)


def groups_of(visibility: Visibility, tokens: int, queries: int, device: torch.device) -> list[Group]:
    """Tiles for the last `queries` of `tokens`. Work and memory grow with the number of visible keys."""
    return [
        grouped(heads, tiles_of(visibility, pattern, tokens, queries), tokens - queries, device)
        for heads, pattern in visibility.groups()
    ]


def tiles_of(visibility: Visibility, pattern: Pattern, tokens: int, queries: int) -> list[Tiles]:
    """One set of tiles for queries with few keys, and one tile for all queries that see over half of the tokens."""
    few, many, width = few_and_many(visibility, pattern, tokens, queries)
    tiles = []
    if len(few):
        order = pattern.neighbours((few - visibility.prefix).clamp_min(0)).argsort(stable=True)
        lists = partial(visibility.lists, pattern, tokens=tokens)
        tiles.append(tiles_from_lists(few[order], pattern.tile, width, tokens, lists))
    if len(many):
        keys = torch.arange(tokens)
        mask = allowed(visibility.runs(pattern, many[:, None], tokens), keys)
        tiles.append(Tiles(many[None], keys[None], mask[None]))
    return tiles


def few_and_many(visibility: Visibility, pattern: Pattern, tokens: int, queries: int) -> tuple[Tensor, Tensor, int]:
    """The last queries: those that see at most half of the tokens, the others, and the most keys of the former."""
    i = torch.arange(tokens - queries, tokens)
    counts = sum((sizes(run) for run in visibility.runs(pattern, i, tokens)), torch.zeros_like(i))
    few = 2 * counts <= tokens
    return i[few], i[~few], int(counts[few].max()) if few.any() else 0


def grouped(heads: slice, tiles: list[Tiles], first: int, device: torch.device) -> Group:
    """A group of tiles of positions in the input; its queries count from position `first`."""
    tiles = [Tiles(t.queries - first, t.keys, t.mask) for t in tiles]
    slots = torch.cat([t.queries.flatten() for t in tiles])
    position = torch.zeros(int(slots.max()) + 1, dtype=torch.long)
    position[slots] = torch.arange(len(slots))  # where a query fills up a tile, all of its results are equal
    return Group(heads, [t.to(device) for t in tiles], position.to(device))


def tiles_from_lists(queries: Tensor, size: int, width: int, keys: int, lists: Callable[[Tensor], Tensor]) -> Tiles:
    """Tiles of `size` neighbours in `queries` (n,). lists(some queries) returns their keys, (queries, about `width`)
    numbers below `keys`, padded with -1."""
    size = min(size, len(queries))
    queries = torch.cat([queries, queries[-1:].expand(-len(queries) % size)]).view(-1, size)
    parts = [_united(part, lists(part.flatten()), keys) for part in queries.split(max(1, LISTED // (size * width)))]
    most = max(united.shape[1] for united, _ in parts)
    most += -most % MULTIPLE
    united = torch.cat([F.pad(keys, (0, most - keys.shape[1])) for keys, _ in parts])
    return Tiles(queries, united, torch.cat([F.pad(mask, (0, most - mask.shape[2])) for _, mask in parts]))


def _united(queries: Tensor, lists: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Keys (T, s) and mask (T, t, s) of tiles with queries (T, t), from the list of keys of each query (T t, w)."""
    count, size = queries.shape
    entry = (lists >= 0).nonzero()
    tile, slot = entry[:, 0] // size, entry[:, 0] % size
    pairs, pair = torch.unique(tile * keys + lists[entry[:, 0], entry[:, 1]], return_inverse=True)
    of_tile = torch.bincount(pairs // keys, minlength=count)
    column = torch.arange(len(pairs)) - (of_tile.cumsum(0) - of_tile)[pairs // keys]
    united = torch.zeros(count, int(of_tile.max()), dtype=torch.long)
    united[pairs // keys, column] = pairs % keys
    mask = torch.zeros(count, size, united.shape[1], dtype=torch.bool)
    mask[tile, slot, column[pair]] = True
    return united, mask
