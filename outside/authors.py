"""FourierFormer_NeurIPS, the authors' code: its layers, with a plain product of sincs for the one in CUDA."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outside.cases import Case
from outside.released import (
    EXACT,
    FLOAT,
    HEADS,
    IMAGES,
    LANGUAGE,
    WIDTH,
    followed,
    inputs,
    language,
    load_without,
    ours,
    with_weights,
)

HEAD = WIDTH // HEADS


def authors_cases(folder: Path) -> Iterator[Case]:
    torch.manual_seed(0)
    text = load_without(folder / "wikitext103/lmtool-fwms/src/mem_transformer.py", "utils", "fourier_layer_cuda")
    image = load_without(
        folder / "imagenet/models.py", "fourier_layer_cuda", "timm.models.registry", "timm.models.layers"
    )
    for name, radius_of, what in (
        ("fourier", lambda radius: radius.expand(HEAD), "one radius for all coordinates"),
        ("fourier_first_coordinate", lambda radius: F.pad(radius, (0, HEAD - 1)), "radius [R, 0, 0, ...]"),
    ):
        product = partial(product_of_sincs, radius_of)
        yield f"FourierAttn, text, {what}: {name}", partial(in_text, text, product, name)
        yield f"FourierAttention, images, {what}: {name}", partial(in_images, image, product, name)


def product_of_sincs(radius_of: Any, q: Tensor, k: Tensor, radius: Tensor) -> Tensor:
    """prod_d sinc(R_d (q_id - k_jd)): (N, B, H, D) and (M, B, H, D) -> (N, M, B, H). Their source reads R_d of a
    parameter with one element: what lies behind it is not defined, and 0 if the memory is."""
    return torch.sinc(radius_of(radius) * (q[:, None] - k[None]) / torch.pi).prod(-1)


def in_text(text: Any, product: Any, name: str) -> None:
    layer, x = text.FourierAttn(HEADS, WIDTH, HEAD, 0.0).double(), inputs()
    text.fourier_layer_cuda.forward = product
    same = with_weights(ours(name, LANGUAGE), layer.o_net, layer.q_net, layer.k_net, layer.v_net)
    torch.testing.assert_close(language(layer, x), followed(layer, x, same(x)), **EXACT)


def in_images(image: Any, product: Any, name: str) -> None:
    layer, x = image.FourierAttention(WIDTH, num_heads=HEADS, qkv_bias=True).eval(), inputs().float()
    image.fourier_layer_cuda.forward = product
    same = ours(name, IMAGES, torch.float32)
    assert same.load_state_dict(layer.state_dict(), strict=False).missing_keys == ["radius"]
    with torch.no_grad():
        torch.testing.assert_close(layer(x), same(x), **FLOAT)
