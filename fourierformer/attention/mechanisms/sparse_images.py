"""Sparse attention for images: rows and columns, and the local memories of the Image Transformer."""

from collections.abc import Sequence

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.patterns import Blocks, GridTiles, Pattern, Residue
from fourierformer.attention.mechanisms.sparse import MASKED, SparseAttention
from fourierformer.attention.mechanisms.sparse_compounds import Split, check_split, divided
from fourierformer.errors import check_range


@register("axial", "half of the heads rows of the image, half columns: two steps connect any two patches")
class Axial(SparseAttention):
    """A: patches of the same row. B: patches of the same column. `split` as in sparse_strided (paper: two layers)."""

    needs_grid = True
    cost, source = f"N √N C; {MASKED}", "Ho et al. 2019, arXiv 1912.12180"

    def __init__(self, geometry: Geometry, *, split: Split = "heads"):
        super().__init__(geometry)
        check_split(geometry, split)
        self.split = split

    def patterns(self) -> Sequence[Pattern]:
        assert self.geometry.grid is not None  # needs_grid
        columns = self.geometry.grid[1]
        return divided(self.geometry, self.split, Blocks(columns), Residue(columns))


@register("image_1d", "blocks of tokens that see themselves and a memory of tokens before them")
class Image1D(SparseAttention):
    """S(i) = {s b - m <= j < (s + 1) b} with s = floor(i / b): a block of b tokens, and the m before it, which connect
    the blocks; a bidirectional model sees no later block either, as in the paper.
    """

    cost, state, source = f"N (b + m) C; {MASKED}", "2 (b + m) C", "Parmar et al. 2018, arXiv 1802.05751, section 3.3"

    def __init__(self, geometry: Geometry, *, block: int = 32, memory: int = 32):
        super().__init__(geometry)
        check_range("attention.block", block, 1)
        check_range("attention.memory", memory, 0)
        self.block, self.memory = block, memory

    def patterns(self) -> Sequence[Pattern]:
        return [Blocks(self.block, before=self.memory)]


@register("image_2d", "rectangles of patches that see themselves and a margin of patches around them")
class Image2D(SparseAttention):
    """A patch sees the square of `tile` x `tile` patches that it lies in, grown by `memory` to all sides. Squares begin
    at the upper left patch; the last ones may be truncated."""

    needs_grid = True
    causal_ok = "its squares are generated one after the other, and a language model goes from left to right"
    cost, source = f"N (t + 2 m)² C; {MASKED}", "Parmar et al. 2018, arXiv 1802.05751, section 3.3"

    def __init__(self, geometry: Geometry, *, tile: int = 7, memory: int = 3):
        super().__init__(geometry)
        check_range("attention.tile", tile, 1)
        check_range("attention.memory", memory, 0)
        self.tile, self.memory = tile, memory

    def patterns(self) -> Sequence[Pattern]:
        assert self.geometry.grid is not None  # needs_grid
        return [GridTiles(self.geometry.grid[1], self.tile, self.memory)]
