"""What the tests of linear_elu, linear_relu, performer, performer_trig and rfa share."""

import torch

from fourierformer import attention
from fourierformer.attention import Geometry

WIDTH, HEADS, LENGTH = 16, 4, 64
POSITIVE = ["linear_elu", "linear_relu", "performer"]
NAMES = [*POSITIVE, "performer_trig", "rfa"]
VARIANTS = [(name, {}) for name in NAMES] + [("performer", {"kind": "hyperbolic"}), ("rfa", {"gate": False})]


def layer_of(name: str, causal: bool = True, *, seed: int = 0, layer: int = 0, **knobs) -> attention.Attention:
    torch.manual_seed(0)
    geometry = Geometry(dim=WIDTH * HEADS, heads=HEADS, length=512, causal=causal, seed=seed, layer=layer)
    return attention.build(name, geometry, **knobs).double().eval()


def heads(std: float = 1.0, n: int = LENGTH, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, HEADS, n, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    return [std * q, std * k, v]


def tokens(n: int, std: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return std * torch.randn(2, n, WIDTH * HEADS, generator=generator, dtype=torch.float64)


NO_X = torch.zeros(2, 0, WIDTH * HEADS, dtype=torch.float64)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
