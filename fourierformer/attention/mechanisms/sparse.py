"""Sparse attention by position: softmax over the keys that a pattern allows; here the elementary patterns.

    o_i = sum_{j in S(i)} softmax_j(q_i . k_j / sqrt(D)) v_j            (Lin et al. 2022, arXiv 2106.04554, section 4.1)

A mechanism defines S(i) by patterns of patterns.py. Up to DENSE tokens all weights are computed and masked; beyond,
only those of tiles of queries and their keys (tiles.py), or on a GPU those of flex_attention, where neighbouring
queries share their keys and the input is as long as the model allows. The result is the same.

On images positions count patches row by row, from 0 at the first patch; the class token sees all and is seen by all.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, State, all_kept, to_float32
from fourierformer.attention.engines.dot_product import attention_to_kept, masked_attention
from fourierformer.attention.engines.flex import block_mask, blockwise_attention, flex_fits
from fourierformer.attention.engines.patterns import Band, Blocks, First, Listed, Pattern
from fourierformer.attention.engines.tiles import groups_of, tiled_attention
from fourierformer.attention.engines.visibility import Visibility
from fourierformer.attention.engines.weighted import scaled_logits, visible_softmax
from fourierformer.errors import check_range
from fourierformer.seeds import seed_of

DENSE = 512  # tokens; tiles are faster from 256 on for bands and blocks, from 1,024 on for random keys (one CPU core)
MASKED = f"N² C up to N = {DENSE}"  # part of the cost
ROUND = 128  # tokens: tiles are made for multiples of it
KEPT = 4  # numbers of tokens whose tiles are stored
SURVEY = "Lin et al. 2022, arXiv 2106.04554, section 4.1"


class SparseAttention(Attention):
    """Softmax over the keys of `patterns`, which a subclass defines."""

    rotary_ok: bool | str = True
    longer_ok = False
    partial_queries = padding_ok = True
    cross_ok = "its pattern relates positions of one sequence, and between two sequences there are none"
    state, source = "2 N C", SURVEY
    slots = 0  # additional keys before the first token that all queries see

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        self._kept: dict[tuple, Any] = {}  # masks and tiles: functions of numbers of tokens

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kept": {}}  # the rule of a block mask is a function that no pickle takes

    def _load_from_state_dict(self, *arguments) -> None:
        super()._load_from_state_dict(*arguments)
        self._kept.clear()  # random patterns may have changed

    def patterns(self) -> Sequence[Pattern]:
        """One for all heads, or one for each."""
        raise TypeError(f"{type(self).__name__} does not define patterns()")

    @property
    def visibility(self) -> Visibility:
        geometry = self.geometry
        return Visibility(tuple(self.patterns()), geometry.heads, geometry.causal, geometry.prefix + self.slots)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        queries, keys = q.shape[-2], k.shape[-2]
        # padding would require a new block mask in every call, and each shorter input another kernel: torch compiles
        # eight, and then runs flex_attention with all N^2 scores in memory
        whole = keep is None and keys == self.geometry.length + self.slots
        if keys > DENSE and whole and flex_fits(self.visibility, q.shape[-1], q.device, q.dtype):
            return blockwise_attention(q, k, v, self._of_length(block_mask, keys, queries, q.device))
        if keys > DENSE:
            q, k, v, keep = self._filled_up(q, k, v, keep)
            groups = self._of_length(groups_of, k.shape[-2], q.shape[-2], q.device)
            return tiled_attention(q, k, v, groups, keep)[:, :, :queries]
        mask = self._mask(q.device)[None, :, keys - queries : keys, :keys]  # torch's kernels take 4 dimensions, not 3
        return attention_to_kept(q, k, v, mask, keep)

    def backend_name(self, device: torch.device) -> str:
        """The implementation for the longest input without padding."""
        if self.geometry.length + self.slots <= DENSE:
            return "masked"
        flex = flex_fits(self.visibility, self.geometry.head_dim, device, torch.float32)
        return "flex_attention" if flex else "tiles"

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        j = torch.arange(k.shape[-2], device=k.device)
        mask = self.visibility.mask(j[-q.shape[-2] :], j, len(j))
        with torch.autocast(q.device.type, enabled=False):
            return visible_softmax(scaled_logits(*to_float32(q, k)), mask)

    def shares(self, tokens: int) -> Tensor:
        """The visible share of each key, for pictures: (1 or heads, tokens, keys), here 1 or 0. Slots come first."""
        keys = torch.arange(tokens + self.slots)
        return self.visibility.mask(keys[self.slots :], keys, len(keys)).float()

    def start(self, batch: int) -> State | None:
        """The position, and the keys and values that later tokens may see: the first ones and the last `reach`."""
        visibility = self.visibility
        if not self.geometry.causal or visibility.reach is None:
            return None
        kept = visibility.first + min(visibility.reach, self.geometry.length - 1) + 1
        empty = self.qkv.weight.new_zeros(batch, self.geometry.heads, kept, self.geometry.head_dim)
        return torch.zeros(1, dtype=torch.long, device=empty.device), empty, empty

    def state_size(self, tokens: int) -> int:
        """Without a state: the most keys and values of past tokens that later tokens see."""
        if self.start(1) is not None:
            return super().state_size(tokens)
        visible = self.shares(tokens)[..., self.slots :] > 0
        last_use = torch.where(visible, torch.arange(tokens)[:, None], -1).amax(1)  # (heads or 1, tokens), of each key
        past = torch.ones(tokens, tokens, dtype=torch.bool).tril()[:, None]  # (now, 1, key)
        kept = (past & (last_use > torch.arange(tokens)[:, None, None])).sum((1, 2)).max()
        return 2 * int(kept) * self.geometry.head_dim * (self.geometry.heads // len(visible))

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        position, keys, values = state
        visibility, kept = self.visibility, keys.shape[2]
        first = torch.arange(visibility.first, device=k.device)
        last = position + torch.arange(first.numel() + 1 - kept, 1, device=k.device)
        keys, values = (_with_next(old, new, first == position) for old, new in ((keys, k), (values, v)))
        mask = visibility.mask(position, torch.cat([first, last]), self.geometry.length + self.slots)
        mask[..., len(first) :] &= last >= len(first)  # no key twice, and none before the first
        return masked_attention(q, keys.to(q.dtype), values.to(v.dtype), mask), (position + 1, keys, values)

    def _filled_up(self, q: Tensor, k: Tensor, v: Tensor, keep: Keep) -> tuple[Tensor, Tensor, Tensor, Keep]:
        """Zeros after the last token, up to a multiple of ROUND: tiles take longer than a call, and few lengths need
        some of their own. No query of a token sees them."""
        queries, keys = q.shape[-2], k.shape[-2]
        more = min(-keys % ROUND, self.geometry.length + self.slots - keys)
        if not more or queries + self.slots < keys:
            return q, k, v, keep
        if keep is not None or not self.geometry.causal:
            keep = F.pad(all_kept(k) if keep is None else keep, (0, more), value=False)
        q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (q, k, v))
        return q, k, v, keep

    @torch._disable_dynamo  # computed once, not in compiled code
    def _mask(self, device: torch.device) -> Tensor:
        """The mask for the most tokens that are ever masked; its upper left part is the mask for fewer."""
        return self._made(("mask", device), lambda: self._largest_mask(device))

    def _largest_mask(self, device: torch.device) -> Tensor:
        j = torch.arange(min(self.geometry.length + self.slots, DENSE), device=device)
        return self.visibility.mask(j, j, len(j))

    @torch._disable_dynamo
    def _of_length(self, make, tokens: int, queries: int, device: torch.device) -> Any:
        """make(visibility, tokens, queries, device): tiles, or the block mask of flex_attention."""
        key = make, tokens, queries, device
        return self._made(key, lambda: make(self.visibility, *key[1:]))

    def _made(self, key: tuple, make) -> Any:
        if key not in self._kept:
            while len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
            with torch.inference_mode(False):  # training may use what an evaluation has computed
                self._kept[key] = make()
        return self._kept[key]


def _with_next(kept: Tensor, new: Tensor, here: Tensor) -> Tensor:
    """[first | last] keys or values (B, H, kept, D) with a new one: at its place among the first, and as the last."""
    first, last = kept.split([len(here), kept.shape[2] - len(here)], dim=2)
    return torch.cat([torch.where(here[:, None], new.to(kept.dtype), first), last[:, :, 1:], new.to(kept.dtype)], dim=2)


@register("global", "the first tokens see all and are seen by all, others see only them; causal: sinks")
class GlobalTokens(SparseAttention):
    """S(i) = {j < g} and i; all j for i < g. The class token counts among the g.

    In a causal model the first g see nothing later (attention sinks): later tokens exchange no information.
    """

    cost, state = f"N g C; {MASKED}", "2 (g + 1) C"

    def __init__(self, geometry: Geometry, *, tokens: int = 1):
        super().__init__(geometry)
        check_range("attention.tokens", tokens, 0)
        self.tokens = tokens

    def patterns(self) -> Sequence[Pattern]:
        return [First(max(0, self.tokens - self.geometry.prefix))]


@register("band", "a window of the nearest tokens to both sides; causal: of the last ones")
class BandAttention(SparseAttention):
    """S(i) = {|i - j| <= w}."""

    cost, state = f"N w C; {MASKED}", "2 (w + 1) C"

    def __init__(self, geometry: Geometry, *, window: int = 32):
        super().__init__(geometry)
        check_range("attention.window", window, 0)
        self.window = window

    def patterns(self) -> Sequence[Pattern]:
        return [Band(self.window)]


@register("dilated", "a window with gaps: every second token, say, of twice the distance")
class DilatedAttention(SparseAttention):
    """S(i) = {|i - j| <= w step, (i - j) a multiple of step}: the cost of a band of w, the reach of one of w step.

    Tokens whose positions differ modulo the step never interact, in any number of layers of one step.
    """

    cost, state = f"N w C; {MASKED}", "2 (w step + 1) C"

    def __init__(self, geometry: Geometry, *, window: int = 16, dilation: int = 2):
        super().__init__(geometry)
        check_range("attention.window", window, 0)
        check_range("attention.dilation", dilation, 1)
        self.window, self.dilation = window, dilation

    def patterns(self) -> Sequence[Pattern]:
        return [Band(self.window, self.dilation)]


@register("block_local", "blocks of neighbouring tokens, each by itself")
class BlockLocal(SparseAttention):
    """S(i) = {j: floor(j / b) = floor(i / b)}: blocks do not interact. The last block may be shorter."""

    cost, state = f"N b C; {MASKED}", "2 b C"

    def __init__(self, geometry: Geometry, *, block: int = 32):
        super().__init__(geometry)
        check_range("attention.block", block, 1)
        self.block = block

    def patterns(self) -> Sequence[Pattern]:
        return [Blocks(self.block)]


@register("random", "keys drawn at random once for every token and head; causal: from its past")
class RandomKeys(SparseAttention):
    """S(i) = r keys drawn without replacement among the others, and i itself: a random graph mixes in few layers.

    Drawn for all positions of the longest input; a shorter input ignores keys beyond its end.
    """

    cost = f"N r C; {MASKED}"
    keys: Tensor

    def __init__(self, geometry: Geometry, *, keys_per_token: int = 16):
        super().__init__(geometry)
        check_range("attention.keys_per_token", keys_per_token, 0)
        tokens = geometry.length - geometry.prefix
        i = torch.arange(tokens)
        after = torch.zeros_like(i) if geometry.causal else tokens - 1 - i
        generator = torch.Generator().manual_seed(seed_of("random", geometry.seed, geometry.layer))
        drawn = [draw_others(keys_per_token, i, 1, after, generator) for _ in range(geometry.heads)]
        self.register_buffer("keys", torch.stack(drawn))

    def patterns(self) -> Sequence[Pattern]:
        return [Listed(table) for table in self.keys]


def draw_others(count: int, before: Tensor, gap: Tensor | int, after: Tensor, generator: torch.Generator) -> Tensor:
    """Draw `count` different numbers per row from 0 ... before - 1 and the `after` numbers behind a gap, all sets
    equally likely; all of them if they are fewer, padded with -1: (rows, count).

    Floyd's algorithm for n numbers: for m = n - count ... n - 1 one of 0 ... m, or m where that was drawn before
    (Bentley and Floyd 1987).
    """
    drawn = torch.full((len(before), count), -1)
    for column in range(count):
        top = before + after - count + column  # below 0 where there are too few
        number = ((top + 1) * torch.rand(len(before), generator=generator, dtype=torch.float64)).long()
        again = (drawn == number[:, None]).any(1)
        drawn[:, column] = torch.where(top < 0, -1, torch.where(again, top, number))
    return torch.where(drawn >= before[:, None], drawn + torch.as_tensor(gap).expand(len(before))[:, None], drawn)
