"""robust_transformer (Han et al. 2023): attention as robust kernel density estimation."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outside.cases import Case
from outside.released import (
    CHANGED,
    EXACT,
    FLOAT,
    HEADS,
    IMAGES,
    LANGUAGE,
    WIDTH,
    OnCpu,
    change_before,
    followed,
    inputs,
    language,
    largest_difference,
    load_without,
    ours,
    with_weights,
)

LOSSES = (("huber", 0.1), ("huber", 0.2), ("huber", 1.0))


def robust_cases(folder: Path) -> Iterator[Case]:
    torch.manual_seed(0)
    text = load_without(folder / "src/mem_transformer.py", "utils")
    image = load_without(
        folder / "imagenet/models.py", "timm.models.registry", "timm.models.layers", "cvxopt", "fourier_layer_cuda"
    )
    yield "KNNMultiHeadAttn: kde", partial(text_kde, text)
    yield "KdeAttention: kde", partial(image_layers, image.KdeAttention, "kde")
    yield "MomAttention, one block of all keys: mom, blocks=1", partial(one_block, image)
    yield "MomAttention: random blocks, one choice for the whole batch", partial(choice_of_the_batch, image)
    yield "MomMultiHeadAttn: sees later tokens", partial(median_sees_later_tokens, text)
    for loss, a in (*LOSSES, ("hampel", 0.2)):
        yield f"RBFMultiHeadAttn, {loss} {a}: no weight at all, kde", partial(text_robust, text, loss, a)
    for loss, a in LOSSES:
        yield f"RobustAttention, {loss} {a}: its middle term times -2 is rkde", partial(image_robust, image, loss, a)
    yield "RobustAttention: no effect of a up to 1", partial(threshold_is_void, image)


def text_layer(text: Any, name: str, dtype: torch.dtype, **options: Any) -> Any:
    return getattr(text, name)(HEADS, WIDTH, WIDTH // HEADS, 0.0, **options).to(dtype)


def in_ours(layer: Any, name: str, x: Tensor, **knobs: Any) -> Tensor:
    same = with_weights(ours(name, LANGUAGE, x.dtype, **knobs), layer.o_net, layer.q_net, layer.kv_net)
    return followed(layer, x, same(x))


def text_kde(text: Any) -> None:
    layer, x = text_layer(text, "KNNMultiHeadAttn", torch.float64), inputs()
    torch.testing.assert_close(language(layer, x), in_ours(layer, "kde", x), **EXACT)


def text_robust(text: Any, loss: str, a: float) -> None:
    layer, x = text_layer(text, "RBFMultiHeadAttn", torch.float32, loss_type=loss, huber_a=a), 3 * inputs().float()
    with OnCpu():
        found = language(layer, x)
    torch.testing.assert_close(found, in_ours(layer, "kde", x), **FLOAT)
    if a < 1:
        assert largest_difference(found, in_ours(layer, "rkde", x, loss=loss, a=a)) > CHANGED


def median_sees_later_tokens(text: Any) -> None:
    layer, x = text_layer(text, "MomMultiHeadAttn", torch.float64), inputs()

    def found(x: Tensor) -> Tensor:
        np.random.seed(0)
        return language(layer, x)

    assert change_before(found, x, 8) > CHANGED
    assert change_before(lambda x: in_ours(layer, "mom", x, blocks=3), x, 8) == 0


def image_layers(cls: Any, name: str, **knobs: Any) -> None:
    layer, x = cls(WIDTH, num_heads=HEADS, qkv_bias=True).double().eval(), inputs()
    torch.testing.assert_close(layer(x), with_state(layer, name, x, **knobs), **EXACT)


def with_state(layer: Any, name: str, x: Tensor, **knobs: Any) -> Tensor:
    same = ours(name, IMAGES, x.dtype, **knobs)
    assert not same.load_state_dict(layer.state_dict(), strict=False).missing_keys
    return same(x)


def one_block(image: Any) -> None:
    image_layers(partial(image.MomAttention, outlier_fraction=0, K=1), "mom", blocks=1)


def choice_of_the_batch(image: Any) -> None:
    """In evaluation too, the same image has other outputs with another draw, or beside another image."""
    layer = image.MomAttention(WIDTH, num_heads=HEADS, outlier_fraction=0.5, K=5).double().eval()
    x = inputs()

    def first(seed: int, beside: Tensor) -> Tensor:
        np.random.seed(seed)
        return layer(torch.stack([x[0], beside]))[0]

    found = first(0, x[1])
    assert largest_difference(found, first(0, x[1])) == 0
    assert largest_difference(found, first(1, x[1])) > CHANGED
    assert max(largest_difference(found, first(0, 3 * other)) for other in inputs()) > CHANGED


class Corrected(OnCpu):
    """-2 times the mean kernel of each key, the middle term of |key - mean|^2 in the RKHS, where they add it once: the
    first of three products in each of the two calls of compute_weights."""

    products = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = super().__torch_function__(function, types, args, kwargs)
        if function is torch.einsum:
            self.products += 1
            return found * (-2 if self.products % 3 == 1 else 1)
        return found


def image_robust(image: Any, loss: str, a: float) -> None:
    layer, x = robust_layer(image, loss, a), 3 * inputs().float()
    mine = with_state(layer, "rkde", x, loss=loss, a=a)
    with OnCpu():
        assert largest_difference(layer(x), mine) > CHANGED
    with Corrected() as counted:
        torch.testing.assert_close(layer(x), mine, **FLOAT)
    assert counted.products == 6


def robust_layer(image: Any, loss: str, a: float) -> Any:
    torch.manual_seed(1)
    return image.RobustAttention(WIDTH, loss=loss, num_heads=HEADS, qkv_bias=True, h_a=a).eval()


def threshold_is_void(image: Any) -> None:
    """Distances there are 1 or more, where Huber's weights are in the ratio 1 / r for every a."""
    x = 3 * inputs().float()
    with OnCpu():
        found = [robust_layer(image, loss, a)(x) for loss, a in LOSSES]
    assert max(largest_difference(found[0], other) for other in found[1:]) < 1e-5
    mine = [with_state(robust_layer(image, loss, a), "rkde", x, loss=loss, a=a) for loss, a in LOSSES]
    assert largest_difference(mine[0], mine[2]) > CHANGED
