"""The facts of a model that its attention layers are built for."""

from dataclasses import dataclass
from typing import get_args

from fourierformer.attention.switches import Gate, QKNormKind
from fourierformer.errors import SetupError


@dataclass(frozen=True, slots=True)
class Geometry:
    """The dimensions of a model, passed to every mechanism.

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
    # Switches of the model (switches.py), which Attention applies around every mechanism
    qk_norm: QKNormKind = "none"
    gate: Gate = "none"
    rotary_base: float | None = None  # positions as rotations of queries and keys; None: without
    value_residual: float = 0.0  # multiple of (values of the first layer - own values) that is added to the mixture

    def __post_init__(self):
        if self.dim % self.heads:
            raise SetupError(f"dim {self.dim} is not divisible by heads {self.heads}: choose heads that divide dim")
        for switch, kind in (("qk_norm", QKNormKind), ("gate", Gate)):
            if (value := getattr(self, switch)) not in get_args(kind):
                raise SetupError(f"model.{switch}={value!r}: expected {' or '.join(map(repr, get_args(kind)))}")
        if self.rotary_base is not None and self.head_dim % 2:
            problem = f"{self.head_dim} coordinates per head are an odd number"
            raise SetupError(f"model.position=rotary rotates pairs of coordinates, and {problem}: change model.heads")

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads
