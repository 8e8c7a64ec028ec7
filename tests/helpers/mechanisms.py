"""Every registered mechanism, built small, for tests of the contract."""

import torch

from fourierformer import attention
from fourierformer.attention import Geometry

LENGTH = 197
NAMES = attention.available()
CHOICES = [(n, c) for c in (True, False) for n in NAMES if n in attention.available(causal=c)]


def built(name: str, causal: bool, seed: int = 0, length: int = LENGTH, bias: bool = False) -> attention.Attention:
    torch.manual_seed(seed)
    grid = (14, 14) if attention.mechanism(name).needs_grid else None
    geometry = Geometry(dim=32, heads=4, length=length, causal=causal, bias=bias, grid=grid, prefix=1 if grid else 0)
    return attention.build(name, geometry)


def has_maps(name: str) -> bool:
    cls = type(built(name, causal=(name, True) in CHOICES))  # of `hybrid`, whose layers have another class
    return cls.maps is not attention.Attention.maps


def tokens(n: int, batch: int = 2, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, n, 32, generator=torch.Generator().manual_seed(seed))
