"""The shapes of models: the keys of configs/model/*.yaml, and the ranges they may have."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from fourierformer.errors import LARGEST_COUNT, SetupError, check_range

if TYPE_CHECKING:
    from fourierformer.attention import Geometry

MOST_LAYERS = 1000  # deeper models take minutes to build, and no recipe here trains them
Part = Literal["encoder", "decoder", "cross"]  # the place of an attention layer in an encoder-decoder


def _geometry(**facts: Any) -> Geometry:
    from fourierformer.attention import Geometry  # loads torch, which configs alone do not need

    return Geometry(**facts)


def _check_counts(config: Any, layers: str, *counts: str) -> None:
    check_range(f"model.{layers}", getattr(config, layers), 1, MOST_LAYERS + 1)
    for key in counts:
        check_range(f"model.{key}", getattr(config, key), 1, LARGEST_COUNT + 1)


def _check_text(config: LMConfig | Seq2SeqConfig) -> None:
    check_range("model.dropout", config.dropout, 0, 1)
    if config.dim % 2 or config.dim % config.heads:
        raise SetupError(f"model.dim={config.dim} must be even and divisible by model.heads={config.heads}")


@dataclass(frozen=True, kw_only=True)
class Switches:
    """The keys of configs/model/switches/attention.yaml: changes of every attention layer, whichever its mechanism."""

    qk_norm: Literal["none", "l2", "rms", "cosine"] = "none"
    gate: Literal["none", "head", "element"] = "none"
    value_residual: float = 0.0

    def __post_init__(self):
        check_range("model.value_residual", self.value_residual, 0)

    def _switches(self) -> dict[str, Any]:
        """Their values, as facts of a Geometry."""
        return {field.name: getattr(self, field.name) for field in fields(Switches)}


@dataclass(frozen=True, kw_only=True)
class TextSwitches(Switches):
    """The keys of configs/model/switches/text.yaml, and `norm`."""

    norm: Literal["post", "pre"] = "post"  # LayerNorm after each residual sum, or before each part and after the last
    norm_kind: Literal["layer", "rms"] = "layer"
    feed_forward: Literal["relu", "swiglu"] = "relu"
    dropout_mask: Literal["torch", "bits16"] = "torch"  # random numbers of dropout on a CPU (models/dropout.py)
    # added to the embedding (sinusoid, learned), rotations of queries and keys (rotary), or only the causal mask (none)
    position: Literal["sinusoid", "learned", "rotary", "none"] = "sinusoid"
    rotary_base: float = 10000.0  # the slowest of the rotations takes nearly 2 pi rotary_base tokens

    def __post_init__(self):
        super().__post_init__()
        check_range("model.rotary_base", self.rotary_base, 1)

    @property
    def without_effect(self) -> str | None:
        """Why a value has no effect beside the others, with a way out."""
        if self.position == "rotary" or self.rotary_base == TextSwitches.rotary_base:
            return None
        return f"model.rotary_base={self.rotary_base:g} has no effect with model.position={self.position}: rotary"

    def _switches(self) -> dict[str, Any]:
        return super()._switches() | {"rotary_base": self.rotary_base if self.position == "rotary" else None}


@dataclass(frozen=True, kw_only=True)
class LMConfig(TextSwitches):
    """The keys of configs/model/lm_*.yaml."""

    name: str
    layers: int
    dim: int
    heads: int
    inner: int  # width of the feed-forward layer
    length: int  # tokens per training segment, and the context of evaluation
    dropout: float

    def __post_init__(self):
        super().__post_init__()
        _check_counts(self, "layers", "dim", "heads", "inner", "length")
        _check_text(self)

    def geometry(self, layer: int = 0, seed: int = 0) -> Geometry:
        return _geometry(
            dim=self.dim, heads=self.heads, length=self.length, causal=True, layer=layer, seed=seed, **self._switches()
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(LMConfig):
    """The keys of configs/model/mlm_*.yaml: a bidirectional encoder."""

    mask_rate: float  # share of predicted tokens

    def __post_init__(self):
        super().__post_init__()
        check_range("model.mask_rate", self.mask_rate, 0, 1, above_low=True)

    def geometry(self, layer: int = 0, seed: int = 0) -> Geometry:
        return replace(super().geometry(layer, seed), causal=False)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(TextSwitches):
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
        super().__post_init__()
        _check_counts(self, "layers", "dim", "heads", "inner", "source_length", "target_length")
        _check_text(self)

    def geometry(self, part: Part, layer: int = 0, seed: int = 0) -> Geometry:
        """The geometry of the attention in a layer of the encoder, of the decoder, or between the two (`cross`)."""
        longest = max(self.source_length, self.target_length)
        length = {"encoder": self.source_length, "decoder": self.target_length, "cross": longest}[part]
        # random numbers depend on the number of the layer: every layer of a model has a different one
        number = layer + {"encoder": 0, "decoder": self.layers, "cross": 2 * self.layers}[part]
        facts = {"dim": self.dim, "heads": self.heads, "length": length, "causal": part == "decoder"} | self._switches()
        if part == "cross":
            facts["rotary_base"] = None  # two sequences have no common positions
        return _geometry(**facts, layer=number, seed=seed)


@dataclass(frozen=True, kw_only=True)
class RecallConfig(Switches):
    """The keys of configs/model/recall_*.yaml."""

    name: str
    layers: int
    dim: int
    heads: int
    inner: int  # width of the feed-forward layer; 0 = none

    def __post_init__(self):
        super().__post_init__()
        _check_counts(self, "layers", "dim", "heads")
        check_range("model.inner", self.inner, 0, LARGEST_COUNT + 1)
        if self.dim % self.heads:
            raise SetupError(f"model.dim={self.dim} must be divisible by model.heads={self.heads}")

    def geometry(self, length: int, layer: int = 0, seed: int = 0) -> Geometry:
        facts = {"dim": self.dim, "heads": self.heads, "length": length, "causal": True, "layer": layer, "seed": seed}
        return _geometry(**facts, **self._switches())


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
        return _geometry(dim=dimension, heads=1, length=context, causal=False, layer=layer, seed=seed)


@dataclass(frozen=True, kw_only=True)
class ViTConfig(Switches):
    """The keys of configs/model/{deit,vit}_*.yaml."""

    name: str
    image_size: int  # side of an image in pixels
    patch: int  # side of a patch in pixels
    dim: int
    depth: int
    heads: int
    mlp_ratio: float  # width of the MLP / dim
    drop_path: float  # stochastic depth: rate of the last layer; it grows linearly from 0
    position: Literal["learned", "none"] = "learned"  # position embedding of the tokens before the first block
    pool: Literal["class_token", "average"] = "class_token"  # input of the head; average: the mean of the patches

    def __post_init__(self):
        super().__post_init__()
        _check_counts(self, "depth", "image_size", "patch", "dim", "heads")
        check_range("model.mlp_ratio", self.mlp_ratio, 0, 1000, above_low=True)
        check_range("model.drop_path", self.drop_path, 0, 1)
        if self.image_size % self.patch:
            raise SetupError(f"model.image_size={self.image_size} must be divisible by model.patch={self.patch}")
        if self.dim % self.heads:
            raise SetupError(f"model.dim={self.dim} must be divisible by model.heads={self.heads}")
        if self.dim * self.mlp_ratio < 1:
            raise SetupError(f"model.mlp_ratio={self.mlp_ratio} leaves nothing of model.dim={self.dim}: use 4")

    def geometry(self, layer: int = 0, seed: int = 0) -> Geometry:
        side, prefix = self.image_size // self.patch, int(self.pool == "class_token")
        return _geometry(
            dim=self.dim, heads=self.heads, length=side * side + prefix, causal=False, bias=True, grid=(side, side),
            prefix=prefix, layer=layer, seed=seed, **self._switches(),
        )  # fmt: skip


def attention_layers(config: Any) -> int:
    """The number of attention layers of a model."""
    if isinstance(config, ViTConfig):
        return config.depth
    return config.layers * (3 if isinstance(config, Seq2SeqConfig) else 1)
