"""Elliptical-Attention (Nielsen et al. 2024): a metric from how much values changed since the layer below."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourierformer.attention import Geometry
from fourierformer.attention.switches import Carry
from outside.cases import Case
from outside.released import (
    CHANGED,
    EXACT,
    HEADS,
    IMAGES,
    LANGUAGE,
    TOKENS,
    WIDTH,
    change_before,
    followed,
    inputs,
    language,
    largest_difference,
    load_without,
    ours,
    with_weights,
)

HEAD = WIDTH // HEADS


def elliptical_cases(folder: Path) -> Iterator[Case]:
    torch.manual_seed(0)
    text = load_without(folder / "Wikitext/lmtool-fwms/src/mem_transformer.py", "utils")
    image = load_without(folder / "ImageNet/models.py", "timm.models.registry", "timm.models.layers")
    yield "MahalaAttention, images: elliptical", partial(images, image)
    yield "MultiHeadAttn, text, M: later tokens enter its metric", partial(metric_of_later_tokens, text)
    yield "MultiHeadAttn, text, M: times 1 / sqrt(D), the last token's elliptical", partial(last_token, text)


def in_second_layer(name: str, geometry: Geometry) -> Any:
    return ours(name, replace(geometry, layer=1))


def images(image: Any) -> None:
    layer = image.MahalaAttention(WIDTH, num_heads=HEADS, qkv_bias=True, over_layers=True).double().eval()
    x, (keys, values) = inputs(), torch.randn(2, 2, HEADS, TOKENS, HEAD, dtype=torch.float64)
    same = in_second_layer("elliptical", IMAGES)
    same.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x, keys, values)[0], same(x, carry=Carry(values_below=values)), **EXACT)


def text_layer(text: Any) -> tuple[Any, Tensor, Tensor]:
    layer = text.MultiHeadAttn(HEADS, WIDTH, HEAD, 0.0, M=True, over_layers=True).double()
    return (
        layer,
        inputs(),
        torch.randn(TOKENS, 2, HEADS, HEAD, dtype=torch.float64),
    )  # the last: values of the layer below


def theirs(layer: Any, x: Tensor, below: Tensor) -> Tensor:
    return language(layer, x, head_q_last=torch.zeros_like(below), head_v_last=below)


def mine(layer: Any, x: Tensor, below: Tensor) -> Tensor:
    same = with_weights(in_second_layer("elliptical", LANGUAGE), layer.o_net, layer.q_net, layer.kv_net)
    return followed(layer, x, same(x, carry=Carry(values_below=below.permute(1, 2, 0, 3))))


def metric_of_later_tokens(text: Any) -> None:
    layer, x, below = text_layer(text)
    assert change_before(lambda x: theirs(layer, x, below), x, 8) > CHANGED
    assert change_before(lambda x: mine(layer, x, below), x, 8) == 0


def last_token(text: Any) -> None:
    """Its past is the whole sequence."""
    layer, x, below = text_layer(text)
    expected = mine(layer, x, below)
    assert largest_difference(theirs(layer, x, below)[:, -1], expected[:, -1]) > CHANGED
    layer.q_net.weight.data *= HEAD**-0.5  # which their logits lack
    torch.testing.assert_close(theirs(layer, x, below)[:, -1], expected[:, -1], **EXACT)
