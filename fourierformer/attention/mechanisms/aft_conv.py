"""AFT-conv: position biases that depend on the distance alone, one small kernel per head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Projected
from fourierformer.attention.mechanisms.aft import Gate, WindowedAFT
from fourierformer.errors import SetupError, check_range
from fourierformer.marks import mark


def toeplitz(taps: Tensor, size: int, offset: int = 0) -> Tensor:
    """Biases from a kernel of distances, (..., 2 r + 1) -> (..., size, size): w[t, u] = taps[r + d] for
    d = u + offset - t, and 0 where |d| > r."""
    margin = 2 * size + abs(offset)  # more than any |d|
    first = margin + taps.shape[-1] // 2 + offset - (size - 1)  # index of d for the last query and the first key
    line = F.pad(taps, (margin, margin))[..., first : first + 2 * size - 1]
    return line.unfold(-1, size, 1).flip(-2)


@register("aft_conv", "per-channel averages biased by distance as a convolution, keys shared by the channels of a head")
class AFTConv(WindowedAFT):
    """w_tu = kernel_h[u - t] inside a window, else 0, and one key per head instead of one per channel (AFT-conv).

    kernel = gamma (taps - mean(taps)) / std(taps) + beta per head, initialised as AFT-simple: gamma = beta = 0.
    `aft_heads`, 32 as in the paper's smaller models, have C / aft_heads channels each. In language the kernel covers
    the distances 0 .. window - 1 to the past; on a grid it is window x window, centred, and the prefix has no biases.
    Up to 256 tokens all biases are computed, O(N^2 C) time; beyond, a sequence takes O(N window C), a grid of G columns
    O(N window G C): products of rows, exact where a convolution with exp(w) - 1 would cancel.
    """

    cost, state = "N s C in a window of s; N² C up to N = 256", "(s + 1) C + (s + 2) aft_heads"

    def __init__(self, geometry: Geometry, *, aft_heads: int = 32, window: int = 11, gate: Gate = "sigmoid"):
        if aft_heads < 1 or geometry.dim % aft_heads:
            raise SetupError(f"attention.aft_heads must divide model.dim={geometry.dim}, got {aft_heads}")
        check_range("attention.window", window, 1)
        if not geometry.causal and window % 2 == 0:
            raise SetupError(f"attention.window must be odd in a bidirectional model, got {window}")
        super().__init__(geometry, window - 1 if geometry.causal else window // 2, gate)
        self.longer_ok = self.grid is None
        self.aft_heads = aft_heads
        self.of_queries = 0 if gate == "none" else geometry.dim
        self.qkv = nn.Linear(geometry.dim, self.of_queries + aft_heads + geometry.dim, bias=geometry.bias)
        self.taps = nn.Parameter(torch.randn(aft_heads, window, window if self.grid else 1))
        mark(self, "taps", no_weight_decay=True)  # their scale does not matter
        self.gamma = nn.Parameter(torch.zeros(aft_heads))
        self.beta = nn.Parameter(torch.zeros(aft_heads))

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.aft_heads, 1, self.geometry.dim // self.aft_heads

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """q and v (B, aft_heads, N, C / aft_heads), k (B, aft_heads, N, 1), q of width 0 without a gate; `cross_ok`
        excludes memory."""
        heads = self.aft_heads
        parts = self.qkv(x).split((self.of_queries, heads, self.geometry.dim), dim=-1)
        q, k, v = (part.unflatten(-1, (heads, part.shape[-1] // heads)).transpose(1, 2) for part in parts)
        return q if last is None else q[:, :, -last:], k, v

    def kernel(self) -> Tensor:
        """w by distance: (aft_heads, window, window) on a grid, else (aft_heads, 2 reach + 1)."""
        std, mean = torch.std_mean(self.taps, dim=(1, 2), correction=0, keepdim=True)
        w = self.gamma[:, None, None] * (self.taps - mean) / (std + 1e-6) + self.beta[:, None, None]
        if self.grid:
            return w
        return F.pad(w[..., 0], (0, self.reach if self.geometry.causal else 0))

    def biases(self, tokens: int) -> Tensor:
        if not self.grid:
            return toeplitz(self.kernel(), tokens)
        by_column = toeplitz(self.kernel(), self.grid[1]).movedim(1, -1)  # (H, columns, columns, window)
        by_row = toeplitz(by_column, self.grid[0])  # (H, columns, columns, rows, rows)
        w = by_row.permute(0, 3, 1, 4, 2).flatten(3, 4).flatten(1, 2)
        return F.pad(w, (self.prefix, 0, self.prefix, 0))[:, :tokens, :tokens]

    def row_biases(self, rows: int, size: int, offset: int) -> Tensor:
        if self.grid:
            return toeplitz(self.kernel()[:, self.reach + offset], size)[:, None]
        return toeplitz(self.kernel(), size, offset * size)[:, None]

    def recent_biases(self, position: Tensor) -> Tensor:
        return self.kernel()[:, None, self.reach + 1 - self.recent : self.reach + 1]
