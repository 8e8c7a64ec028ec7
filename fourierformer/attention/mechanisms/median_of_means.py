"""Median of means: keys in blocks, attention inside the block whose estimate of the density is the median."""

import math
from typing import Literal

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.features import unit_norm
from fourierformer.attention.engines.log_kernel import SINC_TURNS, LogKernel
from fourierformer.attention.engines.weighted import WeightedAttention, visible_softmax
from fourierformer.attention.mechanisms.fourier import matched_radius
from fourierformer.errors import check_range


@register("mom", "keys in blocks: each query attends inside the block with the median density (Gaussian, unit keys)")
@register("mom_fourier", "as mom with sinc⁴ products", kernel="sinc")
class MedianOfMeans(WeightedAttention):
    """softmax_j(log w_ij) over one block of keys: that whose mean weight at the query is the median over blocks.

    A minority of blocks with bad keys is never used. Key j of those that are not padding belongs to block j mod
    `blocks`; blocks without visible keys do not take part; of an even number the lower median counts. The choice has no
    gradient. kernel="gaussian": exp(-|q - k^|^2 / sqrt(D)) with keys of unit norm, as `kde`.

    Differs from the source, whose released code draws random blocks for the whole batch, also in evaluation, and in its
    language model lets queries see later keys.
    """

    cost, source = "N² C + N² blocks H", "Han et al. 2023, arXiv 2210.05794"

    def __init__(self, geometry: Geometry, *, blocks: int = 5, kernel: Literal["gaussian", "sinc"] = "gaussian"):
        super().__init__(geometry)
        check_range("attention.blocks", blocks, 1)
        width = geometry.head_dim
        self.blocks = blocks
        self.log_kernel = LogKernel(kernel, bandwidth=math.sqrt(width) / 2, radius=matched_radius(width, 4))
        self.rotary_ok = SINC_TURNS if kernel == "sinc" else True

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        logits = self.log_kernel(q, unit_norm(k) if self.log_kernel.kind == "gaussian" else k)
        kept = visible[..., -1:, :]  # the last query sees all tokens but padding
        block = (kept.cumsum(-1) - 1) % self.blocks
        chosen = self._median(logits.detach(), visible, block)
        return visible_softmax(logits, visible & (block == chosen))

    def _median(self, logits: Tensor, visible: Tensor, block: Tensor) -> Tensor:
        """The block of each query, (B, H, N, 1)."""
        densities, used = [], []
        for b in range(self.blocks):
            mine = visible & (block == b)
            count = mine.sum(-1)
            density = logits.masked_fill(~mine, -math.inf).logsumexp(-1) - count.clamp_min(1).log()
            densities.append(density.masked_fill(count == 0, math.inf))  # sorted behind all others
            used.append((count > 0).expand(density.shape))
        order = torch.stack(densities, dim=-1).argsort(-1)
        middle = (torch.stack(used, dim=-1).sum(-1, keepdim=True) - 1).clamp_min(0) // 2
        return order.gather(-1, middle)

    def diagnostics(self) -> dict[str, float]:
        return self.log_kernel.numbers()
