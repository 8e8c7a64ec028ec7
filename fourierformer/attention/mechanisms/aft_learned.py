"""AFT with biases learned for pairs of positions: between all of them, or inside a window."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.mechanisms.aft import BiasedAFT, Gate, WindowedAFT
from fourierformer.errors import check_range


class Factors(nn.Module):
    """w_tu = a_t . b_u with learned a, b of `width` numbers per position: 2 T width parameters instead of T^2.

    Better than a free w in the paper (table 3: 2.74 against 2.84 bits per dimension, on CIFAR-10).
    """

    def __init__(self, length: int, width: int, std: float):
        super().__init__()
        check_range("attention.bias_dim", width, 1)
        check_range("attention.bias_init_std", std, 0, above_low=True)  # from 0 neither factor gets a gradient
        self.of_query = nn.Parameter(std * torch.randn(length, width))
        self.of_key = nn.Parameter(std * torch.randn(length, width))

    def between(self, t: Tensor, u: Tensor) -> Tensor:
        """w of positions t (..., n) and u (..., m): (..., n, m)."""
        return self.of_query[t] @ self.of_key[u].mT


class FreeBiases(nn.Module):
    """A free w_tu, T^2 parameters: the paper's baseline for the factors."""

    def __init__(self, length: int, std: float):
        super().__init__()
        check_range("attention.bias_init_std", std, 0)
        self.of_pair = nn.Parameter(std * torch.randn(length, length))

    def between(self, t: Tensor, u: Tensor) -> Tensor:
        return self.of_pair[t[..., :, None], u[..., None, :]]


class LearnedBiases(BiasedAFT):
    """w_tu learned for pairs of positions: factors of `bias_dim`, or free."""

    longer_ok = False

    def _learn_biases(self, factorized: bool, bias_dim: int, std: float) -> None:
        length = self.geometry.length
        if factorized:
            self.factors = Factors(length, bias_dim, std)
        else:
            self.free = FreeBiases(length, std)
        self.factorized = factorized

    def between(self, t: Tensor, u: Tensor) -> Tensor:
        return (self.factors if self.factorized else self.free).between(t, u)


@register("aft_full", "per-channel averages with a learned bias for every pair of positions, gated by the query")
class AFTFull(LearnedBiases):
    """w_tu = a_t . b_u for all pairs of positions, the class token's included (AFT-full, equation 2 of the paper).
    `factorized=false`: a free w_tu. O(N^2 C) time; no state of constant size.
    """

    cost, state = "N² C", "2 N C"

    def __init__(
        self, geometry: Geometry, *,
        bias_dim: int = 128, bias_init_std: float = 0.1, factorized: bool = True, gate: Gate = "sigmoid",
    ):  # fmt: skip
        super().__init__(geometry, reach=geometry.length, gate=gate)
        self._learn_biases(factorized, bias_dim, bias_init_std)

    def biases(self, tokens: int) -> Tensor:
        position = torch.arange(tokens, device=self.qkv.weight.device)
        return self.between(position, position)[None]


@register("aft_local", "as aft_full with biases inside a window only; tokens outside keep weight exp(key)")
class AFTLocal(WindowedAFT, LearnedBiases):
    """w_tu = a_t . b_u where |t - u| < window, else 0: tokens outside stay connected (AFT-local, equation 3).
    `factorized=false`: a free w_tu there.

    On a grid the window is |rows apart| < window and |columns apart| < window, and the prefix has no biases. Up to
    256 tokens O(N^2 C) time; beyond, a sequence takes O(N window C), a grid of G columns O(N window G C).
    """

    cost, state = "N s C in a window of s; N² C up to N = 256", "(2 s + 3) C"

    def __init__(
        self, geometry: Geometry, *, window: int = 32,
        bias_dim: int = 128, bias_init_std: float = 0.1, factorized: bool = True, gate: Gate = "sigmoid",
    ):  # fmt: skip
        check_range("attention.window", window, 0)  # 0: no biases
        super().__init__(geometry, reach=max(window - 1, 0), gate=gate)
        self.window = window
        self._learn_biases(factorized, bias_dim, bias_init_std)

    def biases(self, tokens: int) -> Tensor:
        every = torch.arange(tokens, device=self.qkv.weight.device)
        w = self.between(every, every)
        position = every[: max(tokens - self.prefix, 0)]
        columns = self.grid[1] if self.grid else 1
        apart = torch.maximum(*((x - x[:, None]).abs() for x in (position // columns, position % columns)))
        inside = F.pad((apart < self.window).to(w.dtype), (self.prefix, 0, self.prefix, 0))
        return (w * inside[:tokens, :tokens])[None]

    def row_biases(self, rows: int, size: int, offset: int) -> Tensor:
        position = torch.arange(size, device=self.qkv.weight.device)
        start = self.prefix + size * torch.arange(rows, device=position.device)[:, None]
        # the last row may be incomplete, and the first and last have no neighbours: those keys have weight 0, so any w
        t, u = (x.clamp(0, self.geometry.length - 1) for x in (start + position, start + offset * size + position))
        w = self.between(t, u)
        apart = position + (0 if self.grid else offset * size) - position[:, None]
        return (w * (apart.abs() < self.window).to(w.dtype))[None]

    def recent_biases(self, position: Tensor) -> Tensor:
        last = torch.arange(1 - self.recent, 1, device=position.device)
        return self.between(position, (position + last).clamp_min(0))[None] * (self.window > 0)
