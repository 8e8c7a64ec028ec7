"""FNet: a Fourier transform of the sequence in place of attention. Fourier attention transforms no sequence."""

from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, Projected, to_float32


@register("fnet", "a fixed Fourier transform of the sequence in place of attention; no weights, no parameters")
class FNet(Attention):
    """Y = Re(DFT of X over tokens and channels), without projections.

    FNet replaces attention by a transform of the sequence; FourierFormer keeps attention and replaces its kernel.
    norm="backward": not normalised, as in the source; "ortho": divided by sqrt(N C), for models that do not normalise
    the output.
    """

    rotary_ok = "it has no queries and no keys"
    qk_norm_ok = "it has no queries and no keys"
    causal_ok = "every output is a transform of all positions"
    cross_ok = "its output is a transform of its own sequence"
    padding_ok = "a sequence without its padding has another transform"
    cost, state, source = "N C log(N C)", "none", "Lee-Thorp et al. 2021, arXiv 2105.03824"

    def __init__(self, geometry: Geometry, *, norm: Literal["backward", "ortho"] = "backward"):
        super().__init__(geometry)
        self.norm = norm
        self.qkv, self.proj = nn.Identity(), nn.Identity()  # type: ignore[assignment]

    def project(self, x: Tensor, memory: Tensor | None = None, last: int | None = None) -> Projected:
        return (self._split(x),) * 3

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        with torch.autocast(v.device.type, enabled=False):
            (sequence,) = to_float32(v.transpose(1, 2).flatten(-2))
            return self._split(torch.fft.fft2(sequence, norm=self.norm).real.to(v.dtype))
