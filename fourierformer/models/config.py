"""The shapes of models: the keys of configs/model/*.yaml, and the ranges they may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fourierformer.errors import SetupError, check_range

if TYPE_CHECKING:
    from fourierformer.attention import Geometry


@dataclass(frozen=True, kw_only=True)
class LMConfig:
    """The keys of configs/model/lm_*.yaml."""

    name: str
    layers: int
    dim: int
    heads: int
    inner: int  # width of the feed-forward layer
    length: int  # tokens per training segment, and the context of evaluation
    dropout: float

    def __post_init__(self):
        for key in ("layers", "dim", "heads", "inner", "length"):
            check_range(f"model.{key}", getattr(self, key), 1)
        check_range("model.dropout", self.dropout, 0, 1)
        if self.dim % 2 or self.dim % self.heads:
            raise SetupError(f"model.dim={self.dim} must be even and divisible by model.heads={self.heads}")

    def geometry(self, layer: int = 0, seed: int = 0) -> Geometry:
        from fourierformer.attention import Geometry

        return Geometry(dim=self.dim, heads=self.heads, length=self.length, causal=True, layer=layer, seed=seed)


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """The keys of configs/model/{deit,vit}_*.yaml."""

    name: str
    image_size: int  # side of an image in pixels
    patch: int  # side of a patch in pixels
    dim: int
    depth: int
    heads: int
    mlp_ratio: float  # width of the MLP / dim
    drop_path: float  # stochastic depth: rate of the last layer; it grows linearly from 0
    position: Literal["learned", "none"] = "learned"  # what is added to the tokens before the first block
    # The input of the head: that token, or the mean of the patches
    pool: Literal["class_token", "average"] = "class_token"

    def __post_init__(self):
        for key in ("image_size", "patch", "dim", "depth", "heads"):
            check_range(f"model.{key}", getattr(self, key), 1)
        check_range("model.mlp_ratio", self.mlp_ratio, 0, above_low=True)
        check_range("model.drop_path", self.drop_path, 0, 1)
        if self.image_size % self.patch:
            raise SetupError(f"model.image_size={self.image_size} must be divisible by model.patch={self.patch}")
        if self.dim % self.heads:
            raise SetupError(f"model.dim={self.dim} must be divisible by model.heads={self.heads}")

    def geometry(self, layer: int = 0, seed: int = 0) -> Geometry:
        from fourierformer.attention import Geometry

        side = self.image_size // self.patch
        prefix = 1 if self.pool == "class_token" else 0
        return Geometry(
            dim=self.dim,
            heads=self.heads,
            length=side * side + prefix,
            causal=False,
            bias=True,
            grid=(side, side),
            prefix=prefix,
            layer=layer,
            seed=seed,
        )
