"""Our vision transformers as timm models.

import timm
import fourierformer.integrations.timm  # registers them
model = timm.create_model("fourierformer_tiny_patch16_224", attention="fourier", img_size=32, patch_size=4, depth=6)
features = timm.create_model("fourierformer_tiny_patch16_224", features_only=True, out_indices=(3, 7, 11))
trained = timm.create_model("local-dir:exported/my_model", pretrained=True)  # of scripts/export.py, or save_for_hf

Arguments are those of timm's vision transformers that `vision_transformer` lists, and those of `timm.create_model`.

Examples:
    >>> import timm, torch
    >>> import fourierformer.integrations.timm
    >>> model = timm.create_model("fourierformer_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=10)
    >>> model(torch.randn(1, 3, 32, 32)).shape
    torch.Size([1, 10])
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model, register_notrace_module
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import nn

from fourierformer.attention import build
from fourierformer.attention.switches import Gate, QKNormKind
from fourierformer.errors import SetupError, did_you_mean
from fourierformer.models.config import ViTConfig
from fourierformer.models.vit import Pool, build_vit

__all__ = []  # register_model adds the names

# For timm.data.resolve_data_config. The paper resizes to 256 and crops 224, which is 0.875 (timm's DeiT: 0.9).
_INPUT = {
    "num_classes": 1000, "input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bicubic",
    "mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD,
    "first_conv": "patch_embed.proj", "classifier": "head", "fixed_input_size": True,
}  # fmt: skip
_NAMES = "fourierformer_tiny_patch16_224", "fourierformer_small_patch16_224"
default_cfgs = generate_default_cfgs(dict.fromkeys(_NAMES, _INPUT))


def _register(name: str, *, dim: int, heads: int, deit: str) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **options) -> nn.Module:
        if pretrained and not (options.get("pretrained_cfg") or options.get("pretrained_cfg_overlay")):
            raise SetupError(
                f"{name} has no pretrained weights. DeiT's can be loaded, all but the radius: "
                f"model.load_state_dict(timm.create_model('{deit}', pretrained=True).state_dict(), strict=False)"
            )
        options = {"embed_dim": dim, "num_heads": heads} | options
        return build_model_with_cfg(
            partial(vision_transformer, name), name, pretrained, pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": 3, "feature_cls": "getter"}, **options,
        )  # fmt: skip

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"The shape of timm's {deit}, with the attention of this package called `attention`."
    return register_model(create)


def vision_transformer(
    name: str, *, attention: str = "fourier", attention_knobs: dict[str, Any] | None = None, seed: int = 0,
    num_classes: int = 1000, img_size: int | tuple[int, int] = 224, patch_size: int | tuple[int, int] = 16,
    in_chans: int = 3,
    embed_dim: int, depth: int = 12, num_heads: int, mlp_ratio: float = 4.0,
    drop_rate: float = 0.0, drop_path_rate: float = 0.0,
    class_token: bool = True, global_pool: Pool | None = None, pos_embed: str = "learn",
    qk_norm: QKNormKind = "none", gate: Gate = "none", value_residual: float = 0.0, **unknown,
) -> nn.Module:  # fmt: skip
    """A vision transformer with timm's names of arguments, and our switches of the attention; qk_norm is not timm's.

    global_pool: "token" (the default with a class token), "avg" (the default without one), or "" for all tokens.
    """
    if unknown:
        known = [*(vision_transformer.__kwdefaults__ or {}), "embed_dim", "num_heads"]
        raise SetupError(f"{name} has no argument '{min(unknown)}'{did_you_mean(min(unknown), known)}")
    if pos_embed not in ("learn", "none"):
        raise SetupError(f"{name}: pos_embed is 'learn' or 'none', got {pos_embed!r}")
    config = ViTConfig(
        name=name, image_size=_side("img_size", img_size), patch=_side("patch_size", patch_size),
        dim=embed_dim, depth=depth, heads=num_heads, mlp_ratio=mlp_ratio, drop_path=drop_path_rate,
        position="learned" if pos_embed == "learn" else "none", pool="class_token" if class_token else "average",
        qk_norm=qk_norm, gate=gate, value_residual=value_residual,
    )  # fmt: skip
    model = build_vit(
        config, num_classes, partial(build, attention, **(attention_knobs or {})), seed,
        channels=in_chans, head_dropout=drop_rate, global_pool=global_pool,
    )  # fmt: skip
    blocks: Any = model.blocks
    for block in blocks:
        register_notrace_module(type(block.attn))  # of torch.fx, which cannot follow the choice of a kernel
    return model


def _side(name: str, size: int | Sequence[int]) -> int:
    """The side of a square of timm, which is a number or a pair of equal ones."""
    match [size, size] if isinstance(size, int) else size:
        case [int(height), int(width)] if height == width:
            return height
    raise SetupError(f"{name}={size!r}: these models take square images and patches, e.g. {name}=16 or (16, 16)")


fourierformer_tiny_patch16_224 = _register(_NAMES[0], dim=192, heads=3, deit="deit_tiny_patch16_224")
fourierformer_small_patch16_224 = _register(_NAMES[1], dim=384, heads=6, deit="deit_small_patch16_224")
