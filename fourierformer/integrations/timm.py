"""Our vision transformers as timm models.

import timm
import fourierformer.integrations.timm  # registers them
model = timm.create_model("fourierformer_tiny_patch16_224", attention="fourier")
"""

from collections.abc import Callable
from functools import partial

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, get_pretrained_cfg, register_model
from torch import nn

from fourierformer.attention import build
from fourierformer.errors import SetupError
from fourierformer.models.config import ViTConfig
from fourierformer.models.vit import build_vit

__all__ = []  # register_model adds the names

# For timm.data.resolve_data_config. The paper resizes to 256 and crops 224, which is 0.875 (timm's DeiT: 0.9).
_INPUT = {
    "num_classes": 1000,
    "input_size": (3, 224, 224),
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": "patch_embed.proj",
    "classifier": "head",
    "fixed_input_size": True,
}
default_cfgs = generate_default_cfgs(
    {"fourierformer_tiny_patch16_224": _INPUT, "fourierformer_small_patch16_224": _INPUT}
)


def _register(name: str, *, dim: int, heads: int, deit: str) -> Callable[..., nn.Module]:
    def create(
        pretrained: bool = False,
        *,
        attention: str = "fourier",
        attention_knobs: dict[str, object] | None = None,
        num_classes: int = 1000,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        pretrained_cfg: object = None,  # these three: create_model always passes them, for weights that do not exist
        pretrained_cfg_overlay: object = None,
        cache_dir: object = None,
    ) -> nn.Module:
        if pretrained:
            raise SetupError(
                f"{name} has no pretrained weights. DeiT's can be loaded, all but the radius: "
                f"model.load_state_dict(timm.create_model('{deit}', pretrained=True).state_dict(), strict=False)"
            )
        shape = {"image_size": _side(img_size), "patch": patch_size, "dim": dim, "heads": heads}
        model = _build(name, shape, drop_path_rate, num_classes, in_chans, drop_rate, attention, attention_knobs or {})
        known = get_pretrained_cfg(name)
        assert known is not None  # registered below, with the model
        model.pretrained_cfg = model.default_cfg = known.to_dict()
        return model

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"The shape of timm's {deit}, with the attention of this package called `attention`."
    return register_model(create)


def _build(
    name: str, shape: dict, drop_path: float, classes: int, channels: int, dropout: float, attention: str, knobs: dict
) -> nn.Module:
    config = ViTConfig(name=name, depth=12, mlp_ratio=4.0, drop_path=drop_path, **shape)
    return build_vit(config, classes, partial(build, attention, **knobs), channels=channels, head_dropout=dropout)


def _side(size: int | tuple[int, int]) -> int:
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise SetupError(f"img_size={(height, width)}: these models take square images, e.g. img_size={height}")
    return height


fourierformer_tiny_patch16_224 = _register(
    "fourierformer_tiny_patch16_224", dim=192, heads=3, deit="deit_tiny_patch16_224"
)
fourierformer_small_patch16_224 = _register(
    "fourierformer_small_patch16_224", dim=384, heads=6, deit="deit_small_patch16_224"
)
