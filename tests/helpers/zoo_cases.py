"""Layers in float64 with weights far from 0, and the plain formula of softmax over some keys, for the zoo's tests."""

import torch
from torch import Tensor

from fourierformer import attention
from fourierformer.attention import Attention, Geometry

EXACT = {"rtol": 0, "atol": 1e-10}


def layer_of(name: str, causal: bool = False, *, heads: int = 2, length: int = 40, grid=None, prefix=0, **knobs):
    """8 coordinates per head; evaluation mode."""
    torch.manual_seed(0)
    geometry = Geometry(8 * heads, heads, length, causal, bias=True, grid=grid, prefix=prefix)
    layer = attention.build(name, geometry, **knobs).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.4)
    return layer


def tokens(n: int, width: int = 16, batch: int = 2, seed: int = 1) -> Tensor:
    return 2 * torch.randn(batch, n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def projected(layer: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v as `mix` gets them, and what it makes of them."""
    q, k, v = layer.project(x)
    return q, k, v, layer.mix(q, k, v, x)


def softmax_row(q: Tensor, k: Tensor, v: Tensor, extra: Tensor | float = 0.0) -> Tensor:
    """One query (D,), its keys (m, D) and values (m, D): sum_j softmax_j(q.k_j / sqrt(D) + extra_j) v_j."""
    return (k @ q / len(q) ** 0.5 + extra).softmax(0) @ v
