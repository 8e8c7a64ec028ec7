"""Patterns through torch's flex_attention: on a GPU only blocks of keys that some query sees are read.

Blocks have 128 queries and 128 keys. The list of visited blocks is made from the lists of keys that tiles use, in time
and memory that grow with the number of visible keys; the mask inside a block is made from the runs.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fourierformer.attention.engines.patterns import Pattern
from fourierformer.attention.engines.tiles import LISTED, few_and_many
from fourierformer.attention.engines.visibility import Visibility, allowed

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
LEAST_WIDTH = 16  # of a head; the kernels take no fewer coordinates


def flex_fits(visibility: Visibility, width: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether flex_attention applies: on a GPU, for supported precision and width, if neighbours share keys."""
    kernels = device.type == "cuda" and dtype != torch.float64 and width >= LEAST_WIDTH
    return kernels and all(pattern.consecutive for pattern in visibility.patterns)


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, mask: "BlockMask") -> Tensor:
    """softmax(q k^T / sqrt(D)) v over the keys of a block mask, through flex_attention, which has to be compiled."""
    if torch.compiler.is_compiling():  # with all around it
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, block_mask=mask)
    return _compiled_flex_attention()(q, k, v, block_mask=mask)


@functools.cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention  # takes a second to load

    return torch.compile(flex_attention, dynamic=False)


def block_mask(visibility: Visibility, tokens: int, queries: int, device: torch.device) -> "BlockMask":
    """The blocks that the last `queries` of so many tokens visit."""
    from torch.nn.attention.flex_attention import BlockMask

    first, groups = tokens - queries, visibility.groups()

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        inside = [allowed(visibility.runs(pattern, query + first, tokens), key) for _, pattern in groups]
        if len(inside) == 1:
            return inside[0]
        in_group = ((head >= heads.start) & (head < heads.stop) for heads, _ in groups)
        return functools.reduce(torch.logical_or, (a & b for a, b in zip(in_group, inside, strict=True)))

    blocks = [visited_blocks(visibility, p, tokens, queries).expand(h.stop - h.start, -1, -1) for h, p in groups]
    visited = torch.cat(blocks).to(device)
    order = visited.int().argsort(dim=-1, descending=True, stable=True).int()
    count = visited.sum(-1, dtype=torch.int)
    lengths = queries, tokens
    return BlockMask.from_kv_blocks(count[None], order[None], BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=lengths)


def visited_blocks(visibility: Visibility, pattern: Pattern, tokens: int, queries: int) -> Tensor:
    """Boolean (blocks of queries, blocks of keys): whether any query of a block sees any key of the other block."""
    first, rows, columns = tokens - queries, -(-queries // BLOCK), -(-tokens // BLOCK)
    few, many, width = few_and_many(visibility, pattern, tokens, queries)
    visited = torch.zeros(rows, columns, dtype=torch.bool)
    for i in few.split(max(1, LISTED // max(1, width))):
        lists = visibility.lists(pattern, i, tokens)
        query, place = (lists >= 0).nonzero(as_tuple=True)
        visited[(i[query] - first) // BLOCK, lists[query, place] // BLOCK] = True
    visited[(many - first) // BLOCK] = True
    if visibility.causal:
        last_query = first + BLOCK * torch.arange(1, rows + 1) - 1
        visited &= BLOCK * torch.arange(columns) <= last_query[:, None]
    return visited
