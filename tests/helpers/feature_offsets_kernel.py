"""A kernel that stores what `feature_offsets` computes; in a file of its own because importing it needs triton."""

import triton
import triton.language as tl

from fourierformer.kernels.sinc.factors import feature_offsets


@triton.jit
def store_offsets(
    Offsets, block, COUNT: tl.constexpr, STORED: tl.constexpr, NODES: tl.constexpr, PRECISE: tl.constexpr
):
    tl.store(Offsets + tl.arange(0, COUNT), feature_offsets(block * COUNT, COUNT, STORED, NODES, PRECISE))
