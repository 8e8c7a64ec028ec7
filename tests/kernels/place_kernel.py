"""A kernel that shows what `place` computes; in a file of its own because importing it needs triton."""

import triton
import triton.language as tl

from fourierformer.kernels.sinc.factors import place


@triton.jit
def store_places(Found, block, COUNT: tl.constexpr, STORED: tl.constexpr, NODES: tl.constexpr, PRECISE: tl.constexpr):
    tl.store(Found + tl.arange(0, COUNT), place(block * COUNT, COUNT, STORED, NODES, PRECISE))
