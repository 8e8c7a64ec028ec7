"""DeiT with any attention: timm's stock vision transformer, its blocks replaced by ours.

All other parts of the VisionTransformer are timm's: patch embedding, class token, positions, initialisation, head. A
block keeps timm's parameter names, so that stock DeiT weights load, and only a mechanism's own parameters are new.
Parameters of deit_tiny at 1,000 classes, softmax: patches 3*16*16*192 + 192 = 147,648; class token and positions 192 +
197*192 = 38,016; 12 blocks of 4*192 (norms) + 192*576 + 576 + 192*192 + 192 (attention) + 2*192*768 + 768 + 192 (MLP) =
444,864; last norm 384; head 193,000; together 5,717,416. Without class token and positions (deit_tiny_gap) 38,016
fewer: 5,679,400.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from timm.layers import LayerNorm, Mlp, calculate_drop_path_rates, drop_path
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fourierformer.attention import Attention, Geometry
from fourierformer.attention.base import new_carry
from fourierformer.attention.switches import Carry
from fourierformer.errors import SetupError
from fourierformer.marks import marks_of
from fourierformer.models.config import ViTConfig
from fourierformer.transfer import to_device

Pool = Literal["", "avg", "avgmax", "max", "token", "map", "prr"]  # timm's names


class StochasticDepth(nn.Module):
    """Drop a residual branch for some rows of the batch (Huang et al. 2016) and scale the others by 1 / (1 - rate).

    `draw_stochastic_depth` selects the rows; otherwise the layer draws them, as timm's DropPath does.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.scale: Tensor | None = None  # (B,): 0 or 1 / (1 - rate) per row

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if self.scale is None:
            return drop_path(x, self.rate, training=True)
        return x * self.scale.to(x.dtype)[:, None, None]

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


class Block(nn.Module):
    """x + attention(LN(x)), then x + MLP(LN(x)): pre-LN, under timm's names."""

    def __init__(self, attention: Attention, mlp_ratio: float, drop_path: float):
        super().__init__()
        dim = attention.geometry.dim
        self.norm1 = LayerNorm(dim, eps=1e-6)
        self.attn = attention
        self.drop_path1 = StochasticDepth(drop_path)
        self.norm2 = LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path2 = StochasticDepth(drop_path)

    def forward(self, x: Tensor, carry: Carry | None = None) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x), carry=carry))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class Blocks(nn.Sequential):
    """Blocks one after the other, with what one forward pass carries from each to those after it."""

    recompute = False  # activations in the backward pass, from the input and what was carried to the block

    def forward(self, x: Tensor) -> Tensor:
        carry = self.new_carry()
        for block in self:
            x = block(x, carry) if carry is None or not self.recompute else _recomputed(block, x, carry)
        return x

    def new_carry(self) -> Carry | None:
        return new_carry(cast("Attention", self[0].attn))


def _recomputed(block: nn.Module, x: Tensor, carry: Carry) -> Tensor:
    def run(x: Tensor, *carried: Tensor | None) -> tuple[Any, ...]:
        own = Carry(*carried)
        return block(x, own), *vars(own).values()

    y, *carried = checkpoint(run, x, *vars(carry).values(), use_reentrant=False)
    vars(carry).update(zip(vars(carry), carried, strict=True))
    return y


class ViT(VisionTransformer):
    """timm's vision transformer with our blocks, made by `build_vit`."""

    config: ViTConfig
    blocks: Blocks

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Logits of images (B, C, H, W). Without timm's mask of tokens, which our blocks lack and a tracer of torch.fx
        would take for given."""
        return self.forward_head(self.forward_features(x))

    def no_weight_decay(self) -> set[str]:
        """Parameters without weight decay: positions and class token as in timm, and those that mechanisms mark
        (timm would decay a radius per head)."""
        marked = {name for name, mark in marks_of(self).items() if mark.no_weight_decay}
        return super().no_weight_decay() | marked

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """As timm after construction; SetupError to start again, which would leave the mechanisms' parameters out."""
        if needs_reset:
            raise SetupError("attentions are initialised when they are built: build the model again, or load weights")
        super().init_weights(mode, needs_reset)

    def set_input_size(self, *_, **__) -> None:
        """SetupError: timm would resize the positions, but our attentions are made for one grid of patches."""
        raise SetupError("the size of the images cannot be changed: build the model again with img_size=")

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """As timm; blocks that need values of other blocks recompute by themselves (not in forward_intermediates)."""
        carried = self.blocks.new_carry() is not None
        super().set_grad_checkpointing(enable and not carried)
        self.blocks.recompute = enable and carried

    def forward_intermediates(self, *arguments: Any, **options: Any) -> Any:
        """As timm, which calls the blocks one by one, with what is carried between them."""
        carry = self.blocks.new_carry()
        hooks = [block.register_forward_pre_hook(lambda _, x: (*x, carry)) for block in self.blocks] if carry else []
        try:
            return super().forward_intermediates(*arguments, **options)
        finally:
            for hook in hooks:
                hook.remove()

    def compile_blocks(self, **options) -> None:
        """Apply torch.compile block by block: all have the same shapes, so that one compilation is enough.

        Train with `draw_stochastic_depth` then: a layer that draws its own numbers is compiled for its rate.
        """
        for block in self.blocks:
            block.compile(**options)


def build_vit(
    config: ViTConfig, classes: int, attention: Callable[[Geometry], Attention], seed: int = 0, *,
    channels: int = 3, head_dropout: float = 0.0, global_pool: Pool | None = None,
) -> ViT:  # fmt: skip
    """The vision transformer of a config. classes = 0: without a head, as in timm; it returns the input of the head.

    With pool=average there is no class token, and the last norm follows the mean, as in timm. global_pool: timm's name
    for the input of the head where `pool` does not imply it ("avg" beside a class token, "" for all tokens).
    """
    class_token = config.pool == "class_token"
    model = ViT(
        img_size=config.image_size, patch_size=config.patch, in_chans=channels, num_classes=classes,
        embed_dim=config.dim, depth=config.depth, num_heads=config.heads, mlp_ratio=config.mlp_ratio,
        drop_rate=head_dropout, class_token=class_token,
        pos_embed="learn" if config.position == "learned" else "none",
        global_pool=global_pool if global_pool is not None else "token" if class_token else "avg",
    )  # fmt: skip
    model.config = config
    rates = cast("list[float]", calculate_drop_path_rates(config.drop_path, config.depth))  # lists are for stages
    model.blocks = Blocks(
        *(Block(attention(config.geometry(layer=i, seed=seed)), config.mlp_ratio, rate) for i, rate in enumerate(rates))
    )
    model.init_weights(needs_reset=False)  # again, now that the blocks are ours: timm's law for every Linear
    return model


def draw_stochastic_depth(model: nn.Module, uniform: Tensor | None) -> None:
    """Set stochastic depth for the next forward passes: branch j keeps row b iff uniform[j, b] >= its rate.

    `uniform` is (2 * depth, B) in [0, 1), on the CPU to avoid waiting for a GPU: attention and MLP of the first block,
    of the second, and so on. None: every layer draws its own.
    """
    branches = [module for module in model.modules() if isinstance(module, StochasticDepth)]
    if uniform is None:
        scales: Sequence[Tensor | None] = [None] * len(branches)
    else:
        rates = torch.tensor([branch.rate for branch in branches])[:, None]
        keep = torch.tensor([1 - branch.rate for branch in branches])[:, None]  # rounded once, as in timm
        (kept,) = to_device(next(model.parameters()).device, (uniform >= rates) / keep)
        scales = kept.unbind()
    for branch, scale in zip(branches, scales, strict=True):
        branch.scale = scale
