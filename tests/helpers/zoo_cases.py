"""Layers in float64 with weights far from 0, their rows, and plain formulas over some keys, for the zoo's tests."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from fourierformer import attention
from fourierformer.attention import Attention, Geometry

EXACT = {"rtol": 0, "atol": 1e-10}
BOTH = pytest.mark.parametrize("causal", [True, False])


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


def rows(layer: Attention, causal: bool, n: int = 7):
    """(head, q, keys, values, output) of each query with the keys that it sees."""
    q, k, v, mixed = projected(layer, tokens(n, batch=1, width=layer.geometry.dim))
    for h, i in itertools.product(range(q.shape[1]), range(n)):
        seen = i + 1 if causal else n
        yield h, q[0, h, i], k[0, h, :seen], v[0, h, :seen], mixed[0, h, i]


def sinc_weights(q: Tensor, k: Tensor, radius: Tensor, power: int = 4) -> Tensor:
    return torch.sinc(radius * (q - k) / math.pi).pow(power).prod(-1)
