"""Published combinations of windows, global tokens, random keys and strides: unions in one head, or one per head."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, State, sees_nothing
from fourierformer.attention.engines.patterns import Band, Blocks, First, LastOfBlocks, Listed, Pattern, Residue, Union
from fourierformer.attention.mechanisms.sparse import MASKED, SparseAttention, draw_others
from fourierformer.errors import SetupError, check_range
from fourierformer.seeds import seed_of

Split = Literal["heads", "layers", "union"]


@register("star", "both neighbours and one relay that sees all and is seen by all; causal: the first token as a sink")
class Star(SparseAttention):
    """S(i) = {i - 1, i, i + 1} and the relay, a star beside a chain: two steps connect any two tokens.

    The relay is the class token, without one the first token. In a causal model that token does not see later ones and
    relays nothing: it is a sink beside the previous token.

    Differs from the source, whose relay is a node beside the tokens, updated after them, and whose tokens also attend
    to their own embedding.
    """

    cost, state, source = f"N C; {MASKED}", "6 C", "Guo et al. 2019, arXiv 1902.09113"

    def patterns(self) -> Sequence[Pattern]:
        return [Union((Band(1), First(max(0, 1 - self.geometry.prefix))))]


@register("longformer", "a window and global tokens, some heads with a dilated window; causal: globals are sinks")
class Longformer(SparseAttention):
    """S(i) = {|i - j| <= w}, in the last `dilated_heads` heads every `dilation`-th token of |i - j| <= w dilation, and
    the first `global_tokens` tokens, the class token among them, which see all.

    Both kinds of attention share one projection; the paper has a separate one for global attention. Global tokens of a
    causal model do not see later tokens. The paper dilates upper layers only.
    """

    cost, state, source = f"N (w + g) C; {MASKED}", "2 (w dilation + g + 1) C", "Beltagy et al. 2020, arXiv 2004.05150"

    def __init__(
        self, geometry: Geometry, *,
        window: int = 32, global_tokens: int = 1, dilation: int = 2, dilated_heads: int = 2,
    ):  # fmt: skip
        super().__init__(geometry)
        check_range("attention.window", window, 0)
        check_range("attention.global_tokens", global_tokens, 0)
        check_range("attention.dilation", dilation, 1)
        check_range("attention.dilated_heads", dilated_heads, 0)
        if dilated_heads > geometry.heads:
            raise SetupError(f"attention.dilated_heads={dilated_heads}: must be at most model.heads={geometry.heads}")
        self.window, self.global_tokens = window, global_tokens
        self.dilation, self.dilated_heads = dilation, dilated_heads

    def patterns(self) -> Sequence[Pattern]:
        first = First(max(0, self.global_tokens - self.geometry.prefix))
        near, far = Union((Band(self.window), first)), Union((Band(self.window, self.dilation), first))
        return [near] * (self.geometry.heads - self.dilated_heads) + [far] * self.dilated_heads


@register("etc", "a window, and learned slots that every token reads and none writes; the class token sees all")
class ExtendedTransformer(SparseAttention):
    """S(i) = {|i - j| <= w} and `slots` learned keys and values per head.

    The paper's global tokens lie outside the sequence, read it and persist across layers, as the class token does in
    vision. A slot belongs to one layer and is only read: a slot that reads would leak the future in a causal model. So
    far tokens of a language model interact through many layers only. No maps: the value of a slot belongs to no token.

    Differs from the source also in its relative position embeddings, its training objective and its structured inputs,
    which are left out.
    """

    rotary_ok = "its slots are keys without a position"
    qk_norm_ok = "its slots are keys that would not be normalised"
    cost, state, source = f"N (w + s) C; {MASKED}", "2 (w + s + 1) C", "Ainslie et al. 2020, arXiv 2004.08483"
    maps = Attention.maps

    def __init__(self, geometry: Geometry, *, window: int = 32, slots: int = 8):
        super().__init__(geometry)
        check_range("attention.window", window, 0)
        check_range("attention.slots", slots, 1)
        self.window, self.slots = window, slots
        std = 0.02 * math.sqrt(geometry.dim)  # of the keys and values of unit tokens, under weights N(0, 0.02)
        shape = geometry.heads, slots, geometry.head_dim
        self.slot_keys = nn.Parameter(std * torch.randn(shape))
        self.slot_values = nn.Parameter(std * torch.randn(shape))

    def patterns(self) -> Sequence[Pattern]:
        return [Band(self.window)]

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        k, v = (
            torch.cat([slots.to(tokens.dtype).expand(len(tokens), -1, -1, -1), tokens], dim=2)
            for slots, tokens in ((self.slot_keys, k), (self.slot_values, v))
        )
        if keep is not None:
            without_keys = sees_nothing(q.shape[2], keep, causal=self.geometry.causal)
            keep = F.pad(keep, (self.slots, 0), value=True)
            return super().mix(q, k, v, x, keep=keep).masked_fill(without_keys, 0.0)
        return super().mix(q, k, v, x)

    def start(self, batch: int) -> State | None:
        """The slots take the place of the first tokens."""
        state = super().start(batch)
        if state is None:
            return None
        position, keys, values = state
        return position + self.slots, *(
            torch.cat([slots.detach().expand(batch, -1, -1, -1), tokens[:, :, self.slots :]], dim=2)
            for slots, tokens in ((self.slot_keys, keys), (self.slot_values, values))
        )


@register("bigbird", "blocks: neighbouring, first and randomly drawn ones; causal: all of them from the past")
class BigBird(SparseAttention):
    """Between blocks of b tokens: the `window` blocks to both sides, the first `global_blocks`, which see all, and
    `random_blocks` others, drawn once for every block and head.

    In a causal model the first blocks do not see later ones: they are sinks. Random blocks are drawn for the longest
    input; a shorter input ignores those beyond its end.
    """

    cost, source = f"N (2 w + 1 + g + r) b C; {MASKED}", "Zaheer et al. 2020, arXiv 2007.14062"
    random: Tensor

    def __init__(
        self, geometry: Geometry, *, block: int = 16, window: int = 1, global_blocks: int = 1, random_blocks: int = 2
    ):
        super().__init__(geometry)
        check_range("attention.block", block, 1)
        check_range("attention.window", window, 0)
        check_range("attention.global_blocks", global_blocks, 0)
        check_range("attention.random_blocks", random_blocks, 0)
        self.block, self.window, self.global_blocks = block, window, global_blocks
        generator = torch.Generator().manual_seed(seed_of("bigbird", geometry.seed, geometry.layer))
        drawn = [self._drawn(random_blocks, generator) for _ in range(geometry.heads)]
        self.register_buffer("random", torch.stack(drawn))

    def _drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """Random blocks for every block, neither in its window nor global: (blocks, count)."""
        blocks = -(-(self.geometry.length - self.geometry.prefix) // self.block)
        own, first = torch.arange(blocks), self.global_blocks
        before = (own - self.window - first).clamp_min(0)
        behind = (own + self.window + 1).clamp_min(first)
        after = torch.zeros_like(own) if self.geometry.causal else (blocks - behind).clamp_min(0)
        drawn = draw_others(count, before, behind - first - before, after, generator)
        return torch.where(drawn < 0, -1, drawn + first)

    def patterns(self) -> Sequence[Pattern]:
        side = self.window * self.block
        shared = Blocks(self.block, side, side), First(self.global_blocks * self.block)
        return [Union((*shared, Listed(table, self.block))) for table in self.random]


@register("sparse_strided", "half of the heads the last tokens, half every l-th: two steps connect any two tokens")
class SparseStrided(SparseAttention):
    """A: |i - j| < l. B: i - j a multiple of l. With l near sqrt(N) both have about sqrt(N) keys, and a step of B then
    one of A leads from every token to every other one (causal: to every earlier one).

    split=heads: A in the first half of the heads, B in the others; layers: alternating; union: both in every head.
    """

    cost, state = f"N (l + N / l) C = N √N C; {MASKED}", "(l + N) C"
    source = "Child et al. 2019, arXiv 1904.10509"

    def __init__(self, geometry: Geometry, *, stride: int | None = None, split: Split = "heads"):
        super().__init__(geometry)
        check_range("attention.stride", stride, 1)
        check_split(geometry, split)
        self.stride, self.split = stride or row_length(geometry), split

    def patterns(self) -> Sequence[Pattern]:
        return divided(self.geometry, self.split, Band(self.stride - 1), Residue(self.stride))


@register("sparse_fixed", "half of the heads blocks of l, half the last c tokens of every block, its summary")
class SparseFixed(SparseAttention):
    """A: floor(i / l) = floor(j / l). B: j modulo l >= l - c. The last c tokens of a block summarise it for all others:
    a step of B then one of A leads to every token of every complete block. `split` as in sparse_strided.

    Differs from the source in that all heads of B see the same columns; there each head has a subblock of its own.
    """

    cost, state = f"N (l + c N / l) C = N √N C; {MASKED}", "(l + c N / l) C"
    source = "Child et al. 2019, arXiv 1904.10509"

    def __init__(self, geometry: Geometry, *, block: int | None = None, summary: int = 4, split: Split = "heads"):
        super().__init__(geometry)
        check_range("attention.block", block, 1)
        check_range("attention.summary", summary, 1)
        check_split(geometry, split)
        self.block, self.summary, self.split = block or max(summary, row_length(geometry)), summary, split
        if summary > self.block:
            raise SetupError(f"attention.summary={summary}: must be at most attention.block={self.block}")

    def patterns(self) -> Sequence[Pattern]:
        return divided(self.geometry, self.split, Blocks(self.block), LastOfBlocks(self.block, self.summary))


def row_length(geometry: Geometry) -> int:
    """The default stride l: a row of the grid, or about sqrt(N) of the longest input, the minimum of l + N / l keys."""
    return geometry.grid[1] if geometry.grid else max(1, round(math.sqrt(geometry.length)))


def check_split(geometry: Geometry, split: Split) -> None:
    if split == "heads" and geometry.heads < 2:
        raise SetupError("attention.split=heads needs two heads, one for each pattern: use split=layers or split=union")


def divided(geometry: Geometry, split: Split, a: Pattern, b: Pattern) -> Sequence[Pattern]:
    """Two patterns split over heads (a in the first half, rounded up), over layers (a in even ones), or as a union."""
    if split == "heads":
        half = (geometry.heads + 1) // 2
        return [a] * half + [b] * (geometry.heads - half)
    if split == "layers":
        return [b if geometry.layer % 2 else a]
    return [Union((a, b))]
