"""The attention contract: the methods of a mechanism (Attention), for the facts of a model (Geometry)."""

from collections.abc import Callable
from typing import Any, ClassVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention.geometry import Geometry as Geometry  # where mechanisms import it from, too
from fourierformer.attention.switches import Carry, QKNorm, of_vectors, rotated
from fourierformer.errors import SetupError

State = tuple[Tensor, ...]
Keep = Tensor | None  # (B, M) bool, False for keys that no query may see, such as padding; None: all keys are visible
Projected = tuple[Tensor, Tensor, Tensor]  # q, k, v
NOT_STATED = "not stated"
PASS_CARRY = "give every layer of a forward pass the same carry=new_carry(layer)"


class Attention(nn.Module):
    """An attention layer with its projections, (B, N, dim) -> (B, N, dim); most mechanisms only define `mix`.
    Parameters are called `qkv` and `proj` as in timm, so that stock DeiT weights load.

    Examples:
        >>> import torch
        >>> from fourierformer.attention import Attention, Geometry
        >>> class Mean(Attention):
        ...     def mix(self, q, k, v, x):
        ...         return v.mean(dim=2, keepdim=True).expand_as(v)
        >>> Mean(Geometry(dim=32, heads=4, length=10, causal=False))(torch.randn(2, 10, 32)).shape
        torch.Size([2, 10, 32])
    """

    # True, or the reason why the mechanism cannot do it, never False; `build` refuses with that reason.
    causal_ok: ClassVar[bool | str] = True
    full_ok: ClassVar[bool | str] = True
    # Likewise for keys and values of another sequence and for padding; `forward` refuses with that reason. An instance
    # may set them, where they depend on its knobs.
    cross_ok: bool | str = "it was written for keys and values of its own sequence"
    padding_ok: bool | str = "it was written without a way to leave keys out"
    # Likewise for a model with Geometry.qk_norm or rotary_base: `build` refuses with that reason. rotary_ok = True: a
    # rotation of all queries and keys by the same angles does not change the output, so only differences of positions
    # count.
    qk_norm_ok: bool | str = True
    rotary_ok: bool | str = "it was written for queries and keys that no rotation changes"
    compared: ClassVar[int] = 1  # vectors in the D coordinates of a query: each is normalised and rotated by itself
    needs_grid: ClassVar[bool] = False
    reads_below: ClassVar[bool] = False  # mix(..., below=) gets what `from_below` returns: values of the layer below
    longer_ok: bool = True  # inputs of more than geometry.length tokens; else `forward` refuses them
    # mix() accepts fewer queries than keys, aligned bottom-right: sliding evaluation then skips unscored queries
    partial_queries: ClassVar[bool] = False
    # Optional calls in a training step, besides begin_step and end_step (training/layers.py)
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
        self.qk_norm = None
        if geometry.qk_norm != "none":
            width = geometry.head_dim // self.compared
            self.qk_norm = QKNorm(geometry.qk_norm, geometry.heads, width, queries=self.compared)
        self.output_gate = None
        if geometry.gate != "none":
            width = geometry.dim if geometry.gate == "element" else geometry.heads
            self.output_gate = nn.Linear(geometry.dim, width, bias=geometry.bias)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        """Mix the values: q (B, H, N, K), k and v (B, H, M, K), projections of x (B, M, dim), -> (B, H, N, K).

        keep: a query that sees no key gets 0. Passed only where `padding_ok` is True. cross: k and v belong to another
        sequence, so M is any number and every query sees every key, in a causal model too. Passed only where `cross_ok`
        is True. A class that declares neither may write mix(self, q, k, v, x).
        """
        raise TypeError(f"{type(self).__name__} does not define mix()")

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        """The weights of the values, for analysis/heads.py: q (B, H, N, K), k (B, H, M, K) -> (B, H, N, M) with
        maps(q, k) @ v = mix(q, k, v, x), in float32 at least. Needs N M numbers per head."""
        raise SetupError(f"{type(self).__name__} attention has no maps: its class defines no maps(q, k)")

    def start(self, batch: int) -> State | None:
        """The state before the first token, for `step`; None where the mechanism has no state of constant size."""
        return None

    @torch.no_grad()
    def state_size(self, tokens: int) -> int:
        """Numbers kept after decoding `tokens` tokens: the state, else keys and values of all tokens."""
        if (state := self.start(1)) is not None:
            return sum(part.numel() for part in state)
        return tokens * (self.qkv.out_features - self.geometry.dim)  # all channels but those of the query

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        """`mix` for one more token: q, k, v (B, H, 1, K), x (B, 1, dim) -> (B, H, 1, K) and the next state."""
        raise TypeError(f"{type(self).__name__} does not define mix_step()")

    def begin_step(self, step: int) -> None:
        """Called before every training step, e.g. to draw new random frequencies. The change must depend on `step`
        alone: a resumed run calls it again for the step that was interrupted."""

    def begin_rows(self, numbers: Tensor) -> None:
        """Called before the forward pass of every micro-batch in training, where `draws`: numbers (B,) int64 of its
        rows in the step's global batch. Draws must depend on the step and the number of the row alone: then the number
        of processes and micro-batches changes nothing. Without this call the rows are 0, 1, 2, ..."""

    def auxiliary_loss(self, losses: Tensor) -> Tensor:
        """The layer's addition to the loss of each row of its last forward pass in training, where `adds_loss`: the
        task's losses (B,), without gradient -> (B,). Averaged as the loss: over rows, micro-batches and processes."""
        return torch.zeros_like(losses)

    def end_step(self, sum_over_processes: Callable[[Tensor], Tensor], good: Tensor) -> None:
        """Called after every training step, to update state by statistics of the global batch, e.g. centroids.

        Statistics start from 0 in begin_step. All processes must call sum_over_processes(x). good (), a
        tensor on the device, is 0 if loss or gradients were not finite: then the state must not change."""

    def diagnostics(self) -> dict[str, float]:
        """Numbers to log at every evaluation (the learned radius, say)."""
        return {}

    def backend_name(self, device: torch.device) -> str:
        """The implementation that runs on this device; printed at the start of a run and stored in its summary."""
        return "torch"

    @property
    def uses_carry(self) -> bool:
        """It needs values of other layers: `forward` and `step` must be called with a Carry."""
        return self.reads_below or self.geometry.value_residual != 0

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, keep: Keep = None, last: int | None = None,
        carry: Carry | None = None,
    ) -> Tensor:  # fmt: skip
        """Every position of x (B, N, dim) attends to x, or to another sequence `memory` (B, M, dim): (B, N, dim).

        Every query sees all of memory, in a causal model too.
        keep (B, M), bool: False for padding, whose values are ignored (they may be NaN; their gradient is 0). For a
        query that sees no key, `proj` is applied to zeros. Outputs at padded positions of x are meaningless.
        last: only the last `last` positions of x are queries, and only their outputs are returned.
        carry: the same object for every layer of one forward pass, in order, where `uses_carry`; see `new_carry`.
        """
        if last is not None and last < 1:  # x[:, -0:] would be all of x
            raise ValueError(f"last={last}: the number of the last positions is at least 1")
        if not x.shape[1]:
            return x  # no tokens, no outputs
        if not self.longer_ok and memory is None and x.shape[1] > self.geometry.length:
            made = f"{type(self).__name__} attention is made for {self.geometry.length} positions"
            raise SetupError(f"{made}, got a sequence of {x.shape[1]}: build it for the longest one")
        source = x if memory is None else memory
        options: dict[str, Any] = {}  # given arguments only: mix(self, q, k, v, x) may lack them
        if memory is not None:
            self._check_memory(x, memory)
            options["cross"] = True
        if keep is not None:
            self._check_keep(source, keep)
            source = source.masked_fill(~keep[..., None], 0.0)
            x, memory = (source, None) if memory is None else (x, source)
            options["keep"] = keep
        if not source.shape[1]:  # no keys
            return self.proj(torch.zeros_like(x if last is None else x[:, -last:]))
        queries = last if self.partial_queries else None
        q, k, v = self.arguments(x, memory, queries)
        if self.reads_below and memory is None:
            options["below"] = self.from_below(v, carry)
        mixed = self.mix(q, k, v, source, **options)
        if self.geometry.value_residual and memory is None:
            mixed = self._with_first_values(mixed, v, carry)
        del q, k, v  # free their memory before the last projection
        y = self._merge(mixed, x if queries is None else x[:, -queries:])
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
            must = f"a bool tensor (batch, keys) = {tuple(source.shape[:2])}, True for tokens and False for padding"
            raise ValueError(f"keep must be {must}, got {keep.dtype} {tuple(keep.shape)}")

    def step(
        self, x: Tensor, state: State, position: int | None = None, carry: Carry | None = None
    ) -> tuple[Tensor, State]:
        """One more token: (B, 1, dim) -> (B, 1, dim), equal to that position of `forward` over all tokens so far.
        position: the number of tokens before it, needed where the model rotates by position."""
        if self.geometry.rotary_base is not None and position is None:
            raise ValueError("step(x, state, position) needs the token's position: this layer has rotary positions")
        q, k, v = self.arguments(x, first=position or 0)
        mixed, state = self.mix_step(q, k, v, x, state)
        if self.geometry.value_residual:
            mixed = self._with_first_values(mixed, v, carry)
        return self._merge(mixed, x), state

    def arguments(
        self, x: Tensor, memory: Tensor | None = None, last: int | None = None, *, first: int = 0
    ) -> Projected:
        """The arguments of `mix`: those of `project`, normalised and rotated where the model has `qk_norm` and rotary
        positions. first: the position of the first token of x. Positions exist within one sequence, not to memory."""
        q, k, v = self.project(x, memory, last)
        if self.qk_norm is not None:
            q, k = self.qk_norm(q, k)
        if self.geometry.rotary_base is not None and memory is None:
            of_q = first + k.shape[2] - q.shape[2]
            q, k = self._rotated(q, of_q), self._rotated(k, first)
        return q, k, v

    def _rotated(self, x: Tensor, first: int) -> Tensor:
        base, width = self.geometry.rotary_base, self.geometry.head_dim // self.compared
        assert base is not None
        return of_vectors(x, width, lambda vectors: rotated(vectors, first, base))

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """q (B, H, N, K) of x or its `last` positions, k and v (B, H, M, K) of memory or x. Classes whose q or k has
        other numbers too put them after the D coordinates of the query, or of the keys."""
        q, k, v = self._projected(x, memory, last, (self.geometry.dim,) * 3)
        return self._split(q), self._split(k), self._split(v)

    def _projected(self, x: Tensor, memory: Tensor | None, last: int | None, widths: tuple[int, int, int]) -> Projected:
        """Queries, keys and values before the split into heads, each of its width: (B, N or M, width)."""
        if memory is None and last is None:
            q, k, v = self.qkv(x).split(widths, dim=-1)
            return q, k, v
        # slices of the weights: nothing is computed for tokens that are only queries, or only keys
        weight, bias, of_q = self.qkv.weight, self.qkv.bias, widths[0]
        queries, source = x if last is None else x[:, -last:], x if memory is None else memory
        q = F.linear(queries, weight[:of_q], None if bias is None else bias[:of_q])
        k, v = F.linear(source, weight[of_q:], None if bias is None else bias[of_q:]).split(widths[1:], dim=-1)
        return q, k, v

    def _with_first_values(self, mixed: Tensor, v: Tensor, carry: Carry | None) -> Tensor:
        """mixed + value_residual (v of the first layer - v), of the positions of the queries (Nguyen et al. 2023, arXiv
        2312.00751): it keeps the tokens of deep layers apart."""
        if carry is None:
            raise ValueError("this layer needs values of the first one: " + PASS_CARRY)
        if carry.first_values is None:
            carry.first_values = v
            return mixed
        queries = slice(v.shape[2] - mixed.shape[2], None)
        return mixed + self.geometry.value_residual * (carry.first_values[:, :, queries] - v[:, :, queries])

    def from_below(self, v: Tensor, carry: Carry | None) -> Any:
        """The values of the layer below, in whose place those of this layer are kept for the next one; None in the
        first layer."""
        carry = self._carry_or_new(carry)
        below, carry.values_below = carry.values_below, v
        return below

    def _carry_or_new(self, carry: Carry | None) -> Carry:
        if carry is None and self.geometry.layer:
            raise ValueError("this layer needs values of the one below: " + PASS_CARRY)
        return carry or Carry()  # the first layer, alone

    def _merge(self, mixed: Tensor, x: Tensor) -> Tensor:
        """The output (B, N, dim) of mixed values (B, H, N, K), gated by the input x of the queries."""
        merged = mixed.transpose(1, 2).flatten(-2)
        if self.output_gate is not None:
            gate = self.output_gate(x).sigmoid()
            merged = (merged.unflatten(-1, (gate.shape[-1], -1)) * gate[..., None]).flatten(-2)
        return self.proj(merged)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.geometry.head_dim)).transpose(1, 2)


def layers_of(model: nn.Module) -> list[Attention]:
    """The attention layers of a model, in order."""
    return [module for module in model.modules() if isinstance(module, Attention)]


def new_carry(layer: Attention) -> Carry | None:
    """The `carry` of the next forward pass of a model with such layers; None where they need none."""
    return Carry() if layer.uses_carry else None


def bottom_right_causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Boolean (queries, keys), True = may attend: the last query sees all keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def visible_keys(q: Tensor, k: Tensor, *, causal: bool, keep: Keep = None) -> Tensor:
    """Boolean mask for weights (B, H, N, M), True for visible keys: those to keep, if causal only those of the query's
    past (the last query sees all)."""
    visible = (all_kept(k) if keep is None else keep)[:, None, None]
    return visible & bottom_right_causal(q.shape[-2], k.shape[-2], k.device) if causal else visible


def all_kept(k: Tensor) -> Tensor:
    """The mask (1, M) that keeps every key."""
    return torch.ones(1, k.shape[-2], dtype=torch.bool, device=k.device)


def sees_nothing(queries: int, keep: Tensor, *, causal: bool) -> Tensor:
    """True for queries without a visible key: keep (B, M) -> boolean (B, 1, queries or 1, 1), in time linear in M.
    Causal queries are the last positions."""
    seen = keep.cumsum(1)[:, -queries:] if causal else keep.sum(1, keepdim=True)
    return (seen == 0)[:, None, :, None]


@overload
def to_float32(*tensors: Tensor) -> list[Tensor]: ...


@overload
def to_float32(*tensors: Tensor | None) -> list[Any]: ...  # None where None came in


def to_float32(*tensors: Tensor | None) -> list[Any]:
    """The tensors in float32, or in float64 if one has it: half precision is too inexact for sums over many keys."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = dtype if tensor is None else torch.promote_types(dtype, tensor.dtype)
    return [None if tensor is None else tensor.to(dtype) for tensor in tensors]
