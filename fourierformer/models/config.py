"""The shapes of models: the keys of configs/model/*.yaml, and the ranges they may have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fourierformer.errors import LARGEST_COUNT, SetupError, check_range

if TYPE_CHECKING:
    from fourierformer.attention import Geometry

MOST_LAYERS = 1000  # deeper ones take minutes to build, and no recipe here trains them
Part = Literal["encoder", "decoder", "cross"]  # where an attention layer of an encoder-decoder stands


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
    norm: Literal["post", "pre"] = "post"  # LayerNorm after each residual sum, or before each part and after the last

    def __post_init__(self):
        check_range("model.layers", self.layers, 1, MOST_LAYERS + 1)
        for key in ("dim", "heads", "inner", "length"):
            check_range(f"model.{key}", getattr(self, key), 1, LARGEST_COUNT + 1)
        check_range("model.dropout", self.dropout, 0, 1)
        if self.dim % 2 or self.dim % self.heads:
            raise SetupError(f"model.dim={self.dim} must be even and divisible by model.heads={self.heads}")

    def geometry(self, layer: int = 0, seed: int = 0) -> Geometry:
        from fourierformer.attention import Geometry

        return Geometry(dim=self.dim, heads=self.heads, length=self.length, causal=True, layer=layer, seed=seed)


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(LMConfig):
    """The keys of configs/model/mlm_*.yaml: an encoder, whose tokens see each other in both directions."""

    mask_rate: float  # share of the tokens that are to be predicted

    def __post_init__(self):
        super().__post_init__()
        check_range("model.mask_rate", self.mask_rate, 0, 1, above_low=True)

    def geometry(self, layer: int = 0, seed: int = 0) -> Geometry:
        return replace(super().geometry(layer, seed), causal=False)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """The keys of configs/model/seq2seq_*.yaml."""

    name: str
    layers: int  # of the encoder, and as many of the decoder
    dim: int
    heads: int
    inner: int  # width of the feed-forward layer
    source_length: int  # the longest source and the longest answer, in tokens with their end marks
    target_length: int
    dropout: float

    def __post_init__(self):
        check_range("model.layers", self.layers, 1, MOST_LAYERS + 1)
        for key in ("dim", "heads", "inner", "source_length", "target_length"):
            check_range(f"model.{key}", getattr(self, key), 1, LARGEST_COUNT + 1)
        check_range("model.dropout", self.dropout, 0, 1)
        if self.dim % 2 or self.dim % self.heads:
            raise SetupError(f"model.dim={self.dim} must be even and divisible by model.heads={self.heads}")

    def geometry(self, part: Part, layer: int = 0, seed: int = 0) -> Geometry:
        """Of the attention in a layer of the encoder, of the decoder, or between the two (`cross`)."""
        from fourierformer.attention import Geometry

        length = {
            "encoder": self.source_length,
            "decoder": self.target_length,
            "cross": max(self.source_length, self.target_length),
        }[part]
        # a layer's random numbers depend on its number: no two layers of a model may share it
        number = layer + {"encoder": 0, "decoder": self.layers, "cross": 2 * self.layers}[part]
        return Geometry(
            dim=self.dim, heads=self.heads, length=length, causal=part == "decoder", layer=number, seed=seed
        )


@dataclass(frozen=True, kw_only=True)
class RecallConfig:
    """The keys of configs/model/recall_*.yaml."""

    name: str
    layers: int
    dim: int
    heads: int
    inner: int  # width of the feed-forward layer; 0 = none

    def __post_init__(self):
        check_range("model.layers", self.layers, 1, MOST_LAYERS + 1)
        for key in ("dim", "heads"):
            check_range(f"model.{key}", getattr(self, key), 1, LARGEST_COUNT + 1)
        check_range("model.inner", self.inner, 0, LARGEST_COUNT + 1)
        if self.dim % self.heads:
            raise SetupError(f"model.dim={self.dim} must be divisible by model.heads={self.heads}")

    def geometry(self, length: int, layer: int = 0, seed: int = 0) -> Geometry:
        from fourierformer.attention import Geometry

        return Geometry(dim=self.dim, heads=self.heads, length=length, causal=True, layer=layer, seed=seed)


@dataclass(frozen=True, kw_only=True)
class RegressionConfig:
    """The keys of configs/model/regression_*.yaml."""

    name: str
    layers: int  # each estimates the residuals of those before it
    projections: Literal["identity", "learned"]
    normalise: bool  # queries and keys have the norm sqrt(dimension)

    def __post_init__(self):
        check_range("model.layers", self.layers, 1, MOST_LAYERS + 1)

    def geometry(self, dimension: int, context: int, layer: int = 0, seed: int = 0) -> Geometry:
        from fourierformer.attention import Geometry

        return Geometry(dim=dimension, heads=1, length=context, causal=False, layer=layer, seed=seed)


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
        check_range("model.depth", self.depth, 1, MOST_LAYERS + 1)
        for key in ("image_size", "patch", "dim", "heads"):
            check_range(f"model.{key}", getattr(self, key), 1, LARGEST_COUNT + 1)
        check_range("model.mlp_ratio", self.mlp_ratio, 0, 1000, above_low=True)
        check_range("model.drop_path", self.drop_path, 0, 1)
        if self.image_size % self.patch:
            raise SetupError(f"model.image_size={self.image_size} must be divisible by model.patch={self.patch}")
        if self.dim % self.heads:
            raise SetupError(f"model.dim={self.dim} must be divisible by model.heads={self.heads}")
        if self.dim * self.mlp_ratio < 1:
            raise SetupError(f"model.mlp_ratio={self.mlp_ratio} leaves nothing of model.dim={self.dim}: use 4")

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
