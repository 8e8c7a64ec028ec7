"""Fixed weights: Gaussian windows around the neighbours of a token, whatever the tokens are."""

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Projected
from fourierformer.attention.engines.weighted import WeightedAttention, visible_softmax
from fourierformer.errors import check_range


@register("hard_gaussian", "fixed Gaussian windows around the token or its neighbours: no queries, no keys")
class HardGaussian(WeightedAttention):
    """softmax_j(-(j - i - o_h)^2 / (2 width^2)) over the keys that token i sees, with fixed offsets o_h.

    Heads take the offsets -1 and 0 in turn, in a bidirectional model -1, 0 and 1. Only values are projected. A large
    width gives the mean of the values: average attention (Zhang et al. 2018, arXiv 1805.00631) without its gate and
    feed-forward layer. Images are sequences of patches, row by row.
    Differs from the source in its width, which is a knob (there 1), and in the sum of a row, which is 1 (there weights
    are densities, and less remains where a window leaves the text).
    """

    qk_norm_ok = rotary_ok = "it has no queries and no keys"
    cross_ok = "its weights belong to distances between the tokens of one sequence"
    state, source = "N C", "You et al. 2020, arXiv 2005.00742"

    def __init__(self, geometry: Geometry, *, width: float = 1.0):
        super().__init__(geometry)
        check_range("attention.width", width, 1e-6)
        self.width = width
        self.qkv = nn.Linear(geometry.dim, geometry.dim, bias=geometry.bias)

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        """q and k of width 0; `cross_ok` excludes memory."""
        v = self._split(self.qkv(x))
        return v[:, :, -(last or x.shape[1]) :, :0], v[..., :0], v

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        position = torch.arange(k.shape[-2], device=k.device, dtype=k.dtype)
        own = position[k.shape[-2] - q.shape[-2] :, None]
        head = torch.arange(self.geometry.heads, device=k.device)
        offset = head % (2 if self.geometry.causal else 3) - 1
        logits = -((position - own - offset[:, None, None]) / self.width).square() / 2
        return visible_softmax(logits.expand(len(q), -1, -1, -1), visible)

    def state_size(self, tokens: int) -> int:
        return tokens * self.geometry.dim
