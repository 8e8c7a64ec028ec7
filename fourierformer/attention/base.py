"""The attention contract: what a mechanism knows of its model (Geometry), and what it provides (Attention)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.errors import SetupError

State = tuple[Tensor, ...]
NOT_STATED = "not stated"


@dataclass(frozen=True, slots=True)
class Geometry:
    """The facts about a model that a mechanism may need; the same for all mechanisms.

    Examples:
        >>> from fourierformer.attention import Geometry
        >>> Geometry(dim=192, heads=3, length=197, causal=False, grid=(14, 14), prefix=1).head_dim
        64
    """

    dim: int
    heads: int
    length: int  # the longest sequence the model will see
    causal: bool
    bias: bool = False  # biases in the projections: none in the language model, some in the ViT
    grid: tuple[int, int] | None = None  # patches as (rows, columns), vision only
    prefix: int = 0  # tokens before the grid (class token, registers)
    layer: int = 0
    seed: int = 0

    def __post_init__(self):
        if self.dim % self.heads:
            raise SetupError(f"dim {self.dim} is not divisible by heads {self.heads}: choose heads that divide dim")

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class Attention(nn.Module):
    """An attention layer, (B, N, dim) -> (B, N, dim). It has the projections; most mechanisms only write `mix`.
    The parameters are called `qkv` and `proj` as in timm, so that stock DeiT weights load.

    Examples:
        >>> import torch
        >>> from fourierformer.attention import Attention, Geometry
        >>> class Mean(Attention):
        ...     def mix(self, q, k, v, x):
        ...         return v.mean(dim=2, keepdim=True).expand_as(v)
        >>> Mean(Geometry(dim=32, heads=4, length=10, causal=False))(torch.randn(2, 10, 32)).shape
        torch.Size([2, 10, 32])
    """

    # True, or the reason why the mechanism cannot do it; `build` refuses with that reason.
    causal_ok: ClassVar[bool | str] = True
    full_ok: ClassVar[bool | str] = True
    # Likewise for another sequence's keys and values and for padding; `forward` refuses with that reason. An instance
    # may set them for itself, where they depend on its knobs.
    cross_ok: bool | str = "it was written for keys and values of its own sequence"
    padding_ok: bool | str = "it was written without a way to leave keys out"
    needs_grid: ClassVar[bool] = False
    longer_ok: ClassVar[bool] = True  # inputs of more than geometry.length tokens; else `forward` refuses them
    # mix() accepts fewer queries than keys, aligned bottom-right: sliding evaluation then skips unscored queries
    partial_queries: ClassVar[bool] = False
    # What a training step does for a mechanism beyond begin_step and end_step (training/layers.py)
    draws: ClassVar[bool] = False  # it draws random numbers per row of the batch: begin_rows() is called
    adds_loss: ClassVar[bool] = False  # auxiliary_loss() is called
    # For the table of attentions, per layer and sequence: N tokens, D coordinates per head, C = H D channels
    cost: ClassVar[str] = NOT_STATED  # time
    state: ClassVar[str] = NOT_STATED  # numbers that decoding one more token needs
    source: ClassVar[str] = NOT_STATED

    def __init__(self, geometry: Geometry):
        super().__init__()
        self.geometry = geometry
        self.qkv = nn.Linear(geometry.dim, 3 * geometry.dim, bias=geometry.bias)
        self.proj = nn.Linear(geometry.dim, geometry.dim, bias=geometry.bias)

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Tensor | None = None, cross: bool = False
    ) -> Tensor:
        """What the mechanism computes: q (B, H, N, K), k and v (B, H, M, K) -> (B, H, N, K). x (B, M, dim) is the input
        that k and v were projected from.

        keep (B, M), bool: False for keys that no query may see; a query that sees no key gets 0. Passed only where
        `padding_ok` is True. cross: k and v come from another sequence, so M is any number and every query sees every
        key, in a causal model too. Passed only where `cross_ok` is True. A class that declares neither may write
        mix(self, q, k, v, x).
        """
        raise TypeError(f"{type(self).__name__} does not define mix()")

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        """The weights by which `mix` adds up the values, for analysis/heads.py: q (B, H, N, K), k (B, H, M, K) ->
        (B, H, N, M) with maps(q, k) @ v = mix(q, k, v, x), in float32 at least. Needs N M numbers per head."""
        raise SetupError(f"{type(self).__name__} attention has no maps: its class defines no maps(q, k)")

    def start(self, batch: int) -> State | None:
        """The state before the first token, for `step`; None where the mechanism has no state of constant size."""
        return None

    @torch.no_grad()
    def state_size(self, tokens: int) -> int:
        """How many numbers decoding keeps from one token to the next, in a sequence of `tokens`: the state where there
        is one, else keys and values of all tokens."""
        state = self.start(1)
        if state is None:
            return tokens * (self.qkv.out_features - self.geometry.dim)  # all channels but those of the query
        return sum(part.numel() for part in state)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        """`mix` for one more token: q, k, v (B, H, 1, K), x (B, 1, dim) -> (B, H, 1, K) and the next state."""
        raise TypeError(f"{type(self).__name__} does not define mix_step()")

    def begin_step(self, step: int) -> None:
        """Called before every training step, to change what depends on the step (random frequencies drawn anew, say).
        It must depend on `step` alone: a resumed run calls it again for the step that was interrupted."""

    def begin_rows(self, numbers: Tensor) -> None:
        """Called before the forward pass of every micro-batch in training, where `draws`: which rows of the step's
        global batch it holds, (B,) int64. What is drawn must depend on step and number of a row alone: then the number
        of processes and micro-batches changes nothing. Not called means rows 0, 1, 2, ..."""

    def auxiliary_loss(self, losses: Tensor) -> Tensor:
        """What the layer adds to the loss of each row of its last forward pass in training, where `adds_loss`: losses
        (B,), the task's loss of each row, without gradient -> (B,). Averaged over rows, micro-batches and processes as
        the loss itself is."""
        return torch.zeros_like(losses)

    def end_step(self, sum_over_processes: Callable[[Tensor], Tensor], good: Tensor) -> None:
        """Called after every training step, to change state by what the rows of its global batch said (centroids, say).

        What forward passes add up for it starts from 0 in begin_step. sum_over_processes(x) must be called by all of
        them. good (), on the device, is 0 where loss or gradients were not finite: then the state must stay as it
        was."""

    def diagnostics(self) -> dict[str, float]:
        """Numbers to log at every evaluation (the learned radius, say)."""
        return {}

    def backend_name(self, device: torch.device) -> str:
        """Which implementation runs on this device; printed at the start of a run and kept in its summary."""
        return "torch"

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, keep: Tensor | None = None, last: int | None = None
    ) -> Tensor:
        """Every position of x (B, N, dim) attends to x, or to another sequence `memory` (B, M, dim): (B, N, dim).

        Every query sees all of memory, in a causal model too.
        keep (B, M), bool: False for keys that are padding. Their content is never read (it may be NaN, and its gradient
        is 0), and no query sees them. For a query that sees no key, `proj` is applied to zeros. Outputs at padded
        positions of x mean nothing.
        last: only that many last positions of x are queries, and only their outputs are returned.
        """
        if not self.longer_ok and memory is None and x.shape[1] > self.geometry.length:
            raise SetupError(
                f"{type(self).__name__} attention is made for {self.geometry.length} positions, got a sequence of "
                f"{x.shape[1]}: build it for the longest one"
            )
        source = x if memory is None else memory
        options: dict[str, Any] = {}  # only what was given: a mix without these arguments then works without them
        if memory is not None:
            self._check_memory(x, memory)
            options["cross"] = True
        if keep is not None:
            self._check_keep(source, keep)
            source = source.masked_fill(~keep[..., None], 0.0)
            x, memory = (source, None) if memory is None else (x, source)
            options["keep"] = keep
        queries = last if self.partial_queries else None
        y = self._merge(self.mix(*self.project(x, memory, queries), source, **options))
        return y if last is None or self.partial_queries else y[:, -last:]

    def _check_memory(self, x: Tensor, memory: Tensor) -> None:
        if self.cross_ok is not True:
            raise SetupError(f"{type(self).__name__} attention cannot attend to another sequence: {self.cross_ok}")
        if memory.dim() != 3 or memory.shape[::2] != x.shape[::2]:
            raise ValueError(f"memory must be (batch, keys, dim), got {tuple(memory.shape)} with x {tuple(x.shape)}")

    def _check_keep(self, source: Tensor, keep: Tensor) -> None:
        if self.padding_ok is not True:
            raise SetupError(f"{type(self).__name__} attention cannot ignore padding: {self.padding_ok}")
        if keep.dtype != torch.bool or keep.shape != source.shape[:2]:
            raise ValueError(
                f"keep must be a bool tensor (batch, keys) = {tuple(source.shape[:2])}, True for tokens and False for "
                f"padding, got {keep.dtype} {tuple(keep.shape)}"
            )

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One more token: (B, 1, dim) -> (B, 1, dim), equal to that position of `forward` over all tokens so far."""
        mixed, state = self.mix_step(*self.project(x), x, state)
        return self._merge(mixed), state

    def project(
        self, x: Tensor, memory: Tensor | None = None, last: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as `mix` gets them: q (B, H, N, K) of x, or of its `last` positions only, k and v (B, H, M, K) of
        memory, which is x unless given."""
        dim = self.geometry.dim
        q, k, v = self._projected(x, memory, last, (dim, dim, dim))
        return self._split(q), self._split(k), self._split(v)

    def _projected(
        self, x: Tensor, memory: Tensor | None, last: int | None, widths: tuple[int, int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of `qkv` that make queries, keys and values, each of its width: (B, N or M, width)."""
        if memory is None and last is None:
            q, k, v = self.qkv(x).split(widths, dim=-1)
            return q, k, v
        # parts of the same weights: nothing is computed for tokens that are only queries, or only keys
        weight, bias, of_q = self.qkv.weight, self.qkv.bias, widths[0]
        queries, source = x if last is None else x[:, -last:], x if memory is None else memory
        q = F.linear(queries, weight[:of_q], None if bias is None else bias[:of_q])
        k, v = F.linear(source, weight[of_q:], None if bias is None else bias[of_q:]).split(widths[1:], dim=-1)
        return q, k, v

    def _merge(self, mixed: Tensor) -> Tensor:
        return self.proj(mixed.transpose(1, 2).flatten(-2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.geometry.head_dim)).transpose(1, 2)


def layers_of(model: nn.Module) -> list[Attention]:
    """The attention layers of a model, in their order."""
    return [module for module in model.modules() if isinstance(module, Attention)]


def bottom_right_causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Boolean (queries, keys), True = may attend: the last query sees all keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def visible_keys(q: Tensor, k: Tensor, *, causal: bool, keep: Tensor | None = None) -> Tensor:
    """A boolean mask for weights (B, H, N, M), True for the keys that a query may see: those of its past if causal (the
    last query sees all), and of them those to keep (B, M)."""
    if keep is None:
        keep = torch.ones(1, k.shape[-2], dtype=torch.bool, device=k.device)
    kept = keep[:, None, None]
    return kept & bottom_right_causal(q.shape[-2], k.shape[-2], k.device) if causal else kept


def sees_nothing(queries: int, keep: Tensor, *, causal: bool) -> Tensor:
    """True for queries without any visible key: keep (B, M) -> boolean (B, 1, queries or 1, 1), in time linear in M.
    Causal queries are the last ones of M."""
    seen = keep.cumsum(1)[:, -queries:] if causal else keep.sum(1, keepdim=True)
    return (seen == 0)[:, None, :, None]
