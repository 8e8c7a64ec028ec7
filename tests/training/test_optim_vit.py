"""What decays in a vision transformer: exactly what decays in timm, and no radius of any shape."""

from functools import cache, partial

import pytest
import torch
from timm.optim import param_groups_weight_decay

from fourierformer import attention
from fourierformer.models.vit import ViT, ViTConfig, build_vit
from fourierformer.training.optim import OptimConfig, build_optimizer

ADAMW = OptimConfig(name="adamw", lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.05)
DEIT_TINY = ViTConfig(
    name="deit_tiny", image_size=224, patch=16, dim=192, depth=12, heads=3, mlp_ratio=4.0, drop_path=0.1
)


@cache
def deit_tiny(name: str) -> ViT:
    with torch.device("meta"):
        return build_vit(DEIT_TINY, 1000, partial(attention.build, name))


def by_decay(groups: list[dict], model: ViT) -> dict[float, set[str]]:
    names = {id(p): name for name, p in model.named_parameters()}
    decays: dict[float, set[str]] = {}
    for group in groups:
        decays.setdefault(group["weight_decay"], set()).update(names[id(p)] for p in group["params"])
    return decays


def test_groups_are_timms():
    model = deit_tiny("softmax")
    ours = by_decay(build_optimizer(model, ADAMW).param_groups, model)
    theirs = param_groups_weight_decay(model, 0.05, no_weight_decay_list=["pos_embed", "cls_token"])
    assert ours == by_decay(theirs, model)
    assert {"pos_embed", "cls_token", "norm.weight", "head.bias"} <= ours[0.0]
    assert ours[0.05] >= {"head.weight", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"}


@pytest.mark.parametrize(("name", "dimensions"), [("fourier", 0), ("fourier_head", 2), ("fourier_vector", 2)])
def test_no_radius_decays(name, dimensions):
    model = deit_tiny(name)
    ours = by_decay(build_optimizer(model, ADAMW).param_groups, model)
    radii = {f"blocks.{i}.attn.radius" for i in range(12)}
    assert radii <= ours[0.0]
    assert {model.get_parameter(radius).dim() for radius in radii} == {dimensions}
    softmax = deit_tiny("softmax")
    assert ours[0.05] == by_decay(build_optimizer(softmax, ADAMW).param_groups, softmax)[0.05]
