"""BP-Transformer: near tokens one by one, far ones as means of longer spans, on a binary tree over the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, to_float32
from fourierformer.attention.engines.dot_product import attention_to_kept
from fourierformer.attention.engines.patterns import TILE, Pattern
from fourierformer.attention.engines.tiles import Group, Tiles, grouped, tiled_attention, tiles_from_lists
from fourierformer.attention.engines.weighted import scaled_logits, visible_softmax
from fourierformer.attention.mechanisms.sparse import DENSE, SparseAttention
from fourierformer.errors import check_range


@dataclass(frozen=True)
class Tree:
    """The visible nodes of every token. Node s of level l spans the tokens from s 2^l on: 2^l, or fewer at the end.

    Keys are numbered: the tokens, prefix included, then the nodes of level 1, those of level 2, and so on.
    """

    step: int
    causal: bool
    prefix: int

    def offsets(self, tokens: int) -> list[int]:
        """The number of the first node of every level, then the number of all keys."""
        size, offsets = tokens - self.prefix, [self.prefix, tokens]
        while size > 1:
            size = -(-size // 2)
            offsets.append(offsets[-1] + size)
        return offsets

    def lists(self, i: Tensor, tokens: int) -> Tensor:
        """The keys of each token i (n,): (n, most keys), padded with -1. Prefix tokens have no nodes."""
        prefix = torch.arange(min(self.prefix, tokens)).expand(len(i), -1)
        if self.causal:
            prefix = prefix.masked_fill(prefix > i[:, None], -1)
        nodes = torch.stack(self._nodes((i - self.prefix).clamp_min(0), tokens), dim=1)
        return torch.cat([prefix, i[:, None], nodes.masked_fill(i[:, None] < self.prefix, -1)], dim=1)

    def _nodes(self, i: Tensor, tokens: int) -> list[Tensor]:
        """From every level `step` nodes to the left of the covered tokens, and to the right unless causal.

        Where the covered tokens end in the middle of a node, the first node is its remaining half. So nodes never
        overlap, and together they span all tokens.
        """
        offsets, nodes = self.offsets(tokens), []
        left, right = i, i + 1  # covered: left .. right - 1
        for level, first in enumerate(offsets[:-1]):
            for number in range(self.step):
                size, begin = torch.full((2, 1), 2**level), torch.full((2, 1), first)
                if level and not number:
                    cut = torch.stack([left, right]) // 2 ** (level - 1) % 2 == 1
                    size, begin = torch.where(cut, size // 2, size), torch.where(cut, offsets[level - 1], first)
                nodes.append(torch.where(left > 0, begin[0] + left // size[0] - 1, -1))
                left = (left - size[0]).clamp_min(0)
                if not self.causal:
                    nodes.append(torch.where(right < tokens - self.prefix, begin[1] + right // size[1], -1))
                    right = right + size[1]
        return nodes

    def mask(self, i: Tensor, tokens: int) -> Tensor:
        """Boolean (n, keys), True = sees."""
        keys = self.offsets(tokens)[-1]
        lists = self.lists(i, tokens)
        mask = torch.zeros(len(i), keys + 1, dtype=torch.bool).scatter_(1, lists.masked_fill(lists < 0, keys), True)
        if not self.causal:
            mask[:, :tokens] |= i[:, None] < self.prefix
        return mask[:, :keys]

    def groups(self, heads: int, tokens: int, queries: int, device: torch.device) -> list[Group]:
        """Tiles of the last queries; prefix tokens, which see all others, form a separate tile."""
        i = torch.arange(tokens - queries, tokens)
        alone = i < (0 if self.causal else self.prefix)
        width = self.lists(i[-1:], tokens).shape[1]
        tiles = []
        if not alone.all():
            keys = self.offsets(tokens)[-1]
            tiles.append(tiles_from_lists(i[~alone], TILE, width, keys, lambda i: self.lists(i, tokens)))
        if alone.any():
            everything = torch.ones(1, int(alone.sum()), tokens, dtype=torch.bool)
            tiles.append(Tiles(i[alone][None], torch.arange(tokens)[None], everything))
        return [grouped(slice(0, heads), tiles, tokens - queries, device)]


def span_sums(x: Tensor) -> list[Tensor]:
    """Sums over the nodes of each level above the tokens: (..., N, D) -> (..., N / 2, D), (..., N / 4, D), ..."""
    levels = []
    while x.shape[-2] > 1:
        x = F.pad(x, (0, 0, 0, x.shape[-2] % 2)).unflatten(-2, (-1, 2)).sum(-2)
        levels.append(x)
    return levels


@register("bpt", "near tokens one by one, far ones as means of spans that double in length (binary partition tree)")
class BinaryPartitionTree(SparseAttention):
    """From every level of a binary tree over the tokens each query sees the `step` nearest nodes to both sides that
    nearer ones do not cover; causal: to its left only. Together they span all tokens, about 2 step log2(N / step) keys.

    Key and value of a node are the means over its tokens without padding. In the paper nodes are hidden states that
    attend to their tokens and persist across layers, and edges have learned biases. The tree begins at the first token
    after the prefix for inputs of any length.
    """

    cost, state, source = "N s log N C, s = step; N² C up to N = 512", "4 N C", "Ye et al. 2019, arXiv 1911.04070"
    start = Attention.start

    def __init__(self, geometry: Geometry, *, step: int = 4):
        super().__init__(geometry)
        check_range("attention.step", step, 1)
        self.tree = Tree(step, geometry.causal, geometry.prefix)

    def state_size(self, tokens: int) -> int:
        return 2 * self.geometry.dim * self.tree.offsets(tokens)[-1]

    def patterns(self) -> Sequence[Pattern]:
        raise TypeError("a tree of means has no pattern of tokens: use `tree`")

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        queries = q.shape[-2]
        if in_tiles := k.shape[-2] > DENSE:
            q, k, v, keep = self._filled_up(q, k, v, keep)
        keys, seen = self._with_nodes(k, keep)
        values, _ = self._with_nodes(v, keep)
        if in_tiles:
            groups = self._groups(k.shape[-2], q.shape[-2], q.device)
            return tiled_attention(q, keys, values, groups, seen)[:, :, :queries]
        tokens = k.shape[-2]
        return attention_to_kept(q, keys, values, self._tree_mask(tokens, queries, q.device), seen)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        """The weight of a token, plus its share of the weights of its nodes."""
        tokens, mask = k.shape[-2], self._tree_mask(k.shape[-2], q.shape[-2], q.device)
        with torch.autocast(q.device.type, enabled=False):
            q, k = to_float32(q, k)
            weights = visible_softmax(scaled_logits(q, self._with_nodes(k)[0]), mask)
            return weights @ self._tokens_of_keys(tokens).to(weights)

    def shares(self, tokens: int) -> Tensor:
        """1 for a single token, 1/s for a token in a node of s tokens."""
        return (self.tree.mask(torch.arange(tokens), tokens).float() @ self._tokens_of_keys(tokens))[None]

    def _tokens_of_keys(self, tokens: int) -> Tensor:
        """(keys, tokens): the weights of the tokens in the mean of each key."""
        return self._with_nodes(torch.eye(tokens)[None, None])[0][0, 0]

    def _with_nodes(self, x: Tensor, keep: Keep = None) -> tuple[Tensor, Tensor | None]:
        """Keys or values (B, H, M, D) followed by those of nodes, and the mask of visible ones (B, keys)."""
        prefix = self.tree.prefix
        (leaves,) = to_float32(x[:, :, prefix:])
        kept = torch.ones_like(leaves[:1, :1, :, :1])
        if keep is not None:
            kept = keep[:, None, prefix:, None].to(leaves.dtype)
        sums, counts = span_sums(leaves * kept), span_sums(kept)
        means = [(total / count.clamp_min(1)).to(x.dtype) for total, count in zip(sums, counts, strict=True)]
        seen = None if keep is None else torch.cat([keep, *(count[:, 0, :, 0] > 0 for count in counts)], dim=1)
        return torch.cat([x, *means], dim=2), seen

    @torch._disable_dynamo  # computed once, not in compiled code
    def _groups(self, tokens: int, queries: int, device: torch.device) -> list[Group]:
        heads = self.geometry.heads
        return self._made((tokens, queries, device), lambda: self.tree.groups(heads, tokens, queries, device))

    @torch._disable_dynamo
    def _tree_mask(self, tokens: int, queries: int, device: torch.device) -> Tensor:
        i = torch.arange(tokens - queries, tokens)
        key = "mask", tokens, queries, device
        return self._made(key, lambda: self.tree.mask(i, tokens).to(device)[None, None])
