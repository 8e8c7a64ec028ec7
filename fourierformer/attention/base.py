"""The attention contract: what a model tells a mechanism (Geometry) and what a mechanism owes a model (Attention)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.errors import SetupError

State = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the model knows and every mechanism may need; the same for all of them."""

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


def marked(parameter: nn.Parameter, **marks: object) -> nn.Parameter:
    """The parameter with what training/optim.py reads of it: no_weight_decay=True, lr_multiplier=10.0."""
    for name, value in marks.items():
        setattr(parameter, name, value)
    return parameter


class Attention(nn.Module):
    """(B, N, dim) -> (B, N, dim). Owns the projections; most mechanisms only write `mix`.

    The parameters are called `qkv` and `proj` as in timm, so that stock DeiT weights load.
    """

    # True, or the reason why the mechanism cannot do it; `build` refuses with that reason.
    causal_ok: ClassVar[bool | str] = True
    full_ok: ClassVar[bool | str] = True
    needs_grid: ClassVar[bool] = False
    # mix() accepts fewer queries than keys, aligned bottom-right: sliding evaluation then skips unscored queries
    partial_queries: ClassVar[bool] = False
    # For README's table of mechanisms, per layer and sequence: N tokens, D coordinates per head, C = H D channels
    cost: ClassVar[str]  # time
    state: ClassVar[str]  # numbers that decoding one more token needs
    source: ClassVar[str]

    def __init__(self, geometry: Geometry):
        super().__init__()
        self.geometry = geometry
        self.qkv = nn.Linear(geometry.dim, 3 * geometry.dim, bias=geometry.bias)
        self.proj = nn.Linear(geometry.dim, geometry.dim, bias=geometry.bias)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """The mechanism: q, k, v (B, H, N, K) and the layer's input x (B, N, dim) -> (B, H, N, K)."""
        raise TypeError(f"{type(self).__name__} does not define mix()")

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        """The weights by which `mix` adds up the values, for analysis/heads.py: q (B, H, N, K), k (B, H, M, K) ->
        (B, H, N, M) with maps(q, k) @ v = mix(q, k, v, x), in float32 at least. Needs N M numbers per head."""
        raise SetupError(
            f"{type(self).__name__} attention has no maps: it does not say with which weights it adds up the values"
        )

    def start(self, batch: int) -> State | None:
        """What is known before the first token, for `step`; None where no state of constant size exists."""
        return None

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        """`mix` for one more token: q, k, v (B, H, 1, K), x (B, 1, dim) -> (B, H, 1, K) and the next state."""
        raise TypeError(f"{type(self).__name__} does not define mix_step()")

    def begin_step(self, step: int) -> None:
        """Called before every training step, for what changes with the step (random frequencies drawn anew, say). A
        pure function of `step`: a resumed run calls it again for the step that was interrupted."""

    def diagnostics(self) -> dict[str, float]:
        """Numbers worth a curve, read at evaluations (the learned radius, say)."""
        return {}

    def backend_name(self, device: torch.device) -> str:
        """Which implementation runs on this device; printed at the start of a run and kept in its summary."""
        return "torch"

    def forward(self, x: Tensor, last: int | None = None) -> Tensor:
        """All positions, or only the `last` ones when no more are needed (they still attend to everything)."""
        if last is not None and not self.partial_queries:
            return self.forward(x)[:, -last:]
        return self._merge(self.mix(*self.project(x, last), x))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One more token: (B, 1, dim) -> (B, 1, dim), equal to that position of `forward` over all tokens so far."""
        mixed, state = self.mix_step(*self.project(x), x, state)
        return self._merge(mixed), state

    def project(self, x: Tensor, last: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as `mix` gets them: (B, N, dim) -> three times (B, H, N, K), q for the `last` positions only."""
        if last is None:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        else:  # queries for the last positions only: the same weights, a third of the work saved
            weight, bias, dim = self.qkv.weight, self.qkv.bias, self.geometry.dim
            q = F.linear(x[:, -last:], weight[:dim], None if bias is None else bias[:dim])
            k, v = F.linear(x, weight[dim:], None if bias is None else bias[dim:]).chunk(2, dim=-1)
        return self._split(q), self._split(k), self._split(v)

    def _merge(self, mixed: Tensor) -> Tensor:
        return self.proj(mixed.transpose(1, 2).flatten(-2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.geometry.heads, self.geometry.head_dim)).transpose(1, 2)


def bottom_right_causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Boolean (queries, keys), True = may attend: the last query sees all keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
