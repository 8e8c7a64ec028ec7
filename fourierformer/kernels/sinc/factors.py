"""sinc(R (x_i - y_j)) of one coordinate for a tile of pairs, in Triton, as a matrix product of features.

    sinc(z) = int_0^1 cos(t z) dt = sum_h w_h cos(t_h z),       z = R (x - y)
            = sum_h w_h [cos(t_h R x) cos(t_h R y) + sin(t_h R x) sin(t_h R y)]

Eight nodes, so 16 features, are one step of a tensor core and hold for |z| <= 16; 16 nodes for |z| <= 42. README.md of
this folder has the derivation, the accuracy and the counts.

Features, sqrt(w) cos(t R x) and sqrt(w) sin(t R x) in float16, lie in panels of 64 tokens: (heads, panels, parts,
coordinates, 64, features), in blocks of eight cosines and their eight sines. A second part, in the float32 class only,
holds the rounding error of the first.
"""

import triton
import triton.language as tl

from fourierformer.kernels.sinc.instructions import bounded_float16, log2, reciprocal

HALF_PI = tl.constexpr(1.5707963267948966)
MOST_ROWS = tl.constexpr(128)  # rows or columns of the largest tile: tokens are padded to a multiple
PANEL = tl.constexpr(64)
NEGLIGIBLE = tl.constexpr(1e-36)  # numbers above it have a finite reciprocal
GROUP = tl.constexpr(16)  # coordinates whose sums are held in registers
# Added to the product of two factors before a division. A factor is a sum of products of two float16, so a multiple of
# 2^-48; the product of two is 0 (then the weight is 0 as well) or at least 2^-96 = 1.3e-29: the sum is never 0.
TINY = tl.constexpr(1e-30)


@triton.jit
def feature_offsets(first, COUNT: tl.constexpr, STORED: tl.constexpr, NODES: tl.constexpr, PRECISE: tl.constexpr):
    """Offsets, within their head, of the features of COUNT tokens from `first` on: first part, coordinate 0.

    `first` is a multiple of COUNT, a power of two, so its summand is one number for all tokens. That has 64 bits,
    because a long sequence has more than 2^31 features (64 coordinates in the float32 class: 2^19 tokens).
    """
    SIZE: tl.constexpr = PANEL * STORED * NODES * (PRECISE + 1)  # of a panel
    n = tl.arange(0, COUNT)
    first = tl.cast(first, tl.int64)
    return first // PANEL * SIZE + first % PANEL * NODES + (n // PANEL * SIZE + n % PANEL * NODES)


@triton.jit
def existing(tokens, count, Keep):
    """True for tokens before `count` that are not left out (Keep: 0 for left-out ones)."""
    exists = tokens < count
    if Keep is not None:
        exists = tl.load(Keep + tokens, mask=exists, other=0) != 0
    return exists


@triton.jit
def product(X, Y, LOST: tl.constexpr, NODES: tl.constexpr, PRECISE: tl.constexpr, AGAIN: tl.constexpr):
    """sinc(z) of a tile. X, Y: pointers to the tokens' features; LOST: offset from a feature to its rounding error.

    AGAIN: the same product in a form that the compiler does not recognise as the same. Otherwise it keeps the tiles of
    the first product, for which there are not enough registers.
    """
    c = tl.arange(0, 16)[None, :]
    result = _dot(tl.load(X[:, None] + c), tl.load(Y[:, None] + c), None, AGAIN)
    for first in tl.static_range(16, NODES, 16):
        result = _dot(tl.load(X[:, None] + (first + c)), tl.load(Y[:, None] + (first + c)), result, AGAIN)
    if PRECISE:  # a float32 product from three of float16
        for first in tl.static_range(0, NODES, 16):
            x, y = X[:, None] + (first + c), Y[:, None] + (first + c)
            result = _dot(tl.load(x), tl.load(y + LOST), result, AGAIN)
            result = _dot(tl.load(x + LOST), tl.load(y), result, AGAIN)
    return result


@triton.jit
def slope(X, Y, Table, LOST: tl.constexpr, NODES: tl.constexpr, PRECISE: tl.constexpr):
    """sinc'(z) of a tile, from differentiated features of the rows: d cos(t R x) = -t sin(t R x) d(R x)."""
    c = tl.arange(0, 16)[None, :]
    swapped = (c + 8) % 16
    result = tl.zeros([X.shape[0], Y.shape[0]], tl.float32)
    for first in tl.static_range(0, NODES, 16):
        x, y = X[:, None] + (first + swapped), Y[:, None] + (first + c)
        factor = tl.load(Table + first + c)
        value = tl.load(x).to(tl.float32)
        if PRECISE:
            value = (value + tl.load(x + LOST).to(tl.float32)) * factor
            high = value.to(tl.float16)
            low = (value - high.to(tl.float32)).to(tl.float16)
            result = _dot(high, tl.load(y + LOST), result, False)
            result = _dot(low, tl.load(y), result, False)
        else:
            high = (value * factor).to(tl.float16)
        result = _dot(high, tl.load(y), result, False)
    return result


@triton.jit
def _dot(rows, columns, acc, AGAIN: tl.constexpr):
    # The attribute has no effect on float16, but makes two products different.
    return tl.dot(rows, tl.trans(columns), acc=acc, input_precision="tf32" if AGAIN else "ieee")


@triton.jit
def tile_weights(
    XF, YF, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STORED: tl.constexpr, POWER: tl.constexpr,
    LOG: tl.constexpr, PRECISE: tl.constexpr, NODES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """A tile of w = prod_d sinc(z_d)^POWER, or of log2 w where LOG. XF, YF: the tokens' features."""
    STEP: tl.constexpr = PANEL * NODES
    weights = tl.full([ROWS, COLUMNS], 1.0, tl.float32)
    scores = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, STORED, CHUNK):
        for step in tl.static_range(CHUNK):
            d = start + step
            weights *= product(XF + d * STEP, YF + d * STEP, STEP * STORED, NODES, PRECISE, AGAIN=False)
            # One logarithm per eight factors: 0.02^8 = 3e-14 is far from float32's 1e-38.
            if LOG and (step % 8 == 7 or step == CHUNK - 1):
                scores += log2(tl.abs(weights))
                weights = tl.full([ROWS, COLUMNS], 1.0, tl.float32)
    return scores * POWER if LOG else raised(weights, POWER)


@triton.jit
def raised(x, POWER: tl.constexpr):
    """x^POWER for an even POWER."""
    square = x * x
    result = square
    for _ in tl.static_range(POWER // 2 - 1):
        result *= square
    return result


@triton.jit
def add_slopes(
    Sums, Part, part_size, dscores, XF, YF, Table,
    ROWS: tl.constexpr, STORED: tl.constexpr, PRECISE: tl.constexpr, NODES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Add to Sums the sum over the columns of dscores sinc'(z_d) / sinc(z_d), and store that over the rows in Part,
    unless None."""
    STEP: tl.constexpr = PANEL * NODES
    LOST: tl.constexpr = STEP * STORED
    for start in range(0, STORED, CHUNK):
        for step in tl.static_range(0, CHUNK, 2):
            d = start + step
            X, Y = XF + d * STEP, YF + d * STEP
            quotient1, quotient2 = quotients(dscores, X, Y, STEP, LOST, NODES, PRECISE)
            add_sums(Sums, Part, part_size, quotient1 * slope(X, Y, Table, LOST, NODES, PRECISE), d, ROWS)
            X, Y = X + STEP, Y + STEP
            add_sums(Sums, Part, part_size, quotient2 * slope(X, Y, Table, LOST, NODES, PRECISE), d + 1, ROWS)


@triton.jit
def quotients(dscores, X, Y, STEP: tl.constexpr, LOST: tl.constexpr, NODES: tl.constexpr, PRECISE: tl.constexpr):
    """dscores / sinc(z_d) of a coordinate and of the next one. Both share one reciprocal."""
    factor1 = product(X, Y, LOST, NODES, PRECISE, AGAIN=True)
    factor2 = product(X + STEP, Y + STEP, LOST, NODES, PRECISE, AGAIN=True)
    ratio = dscores * reciprocal(factor1 * factor2 + TINY)
    return ratio * factor2, ratio * factor1


@triton.jit
def add_slopes_by_products(
    Sums, Part, part_size, dscores, XF, YF, Table,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STORED: tl.constexpr, NODES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """As `add_slopes`, rounded to float16: a tensor core then adds them up, as products with ones. `scale` brings the
    largest of dscores to 1; slopes beyond float16 belong to factors near 0, and are cut to its largest number."""
    STEP: tl.constexpr = PANEL * NODES
    LOST: tl.constexpr = STEP * STORED
    largest = tl.max(tl.max(tl.abs(dscores), 1), 0)
    scale = tl.where(largest > NEGLIGIBLE, largest, 1.0)
    dscores *= 1.0 / scale
    n = tl.arange(0, GROUP)
    rows_of_ones = tl.full([GROUP, ROWS], 1.0, tl.float16)
    columns_of_ones = tl.full([COLUMNS, GROUP], 1.0, tl.float16)
    for group in range(0, STORED, GROUP):
        of_columns = tl.zeros([GROUP, COLUMNS], tl.float32)
        of_rows = tl.zeros([ROWS, GROUP], tl.float32)
        for start in range(group, min(group + GROUP, STORED), CHUNK):
            for step in tl.static_range(0, CHUNK, 2):
                d = start + step
                X, Y = XF + d * STEP, YF + d * STEP
                quotient1, quotient2 = quotients(dscores, X, Y, STEP, LOST, NODES, False)
                slopes1 = quotient1 * slope(X, Y, Table, LOST, NODES, False)
                slopes2 = quotient2 * slope(X + STEP, Y + STEP, Table, LOST, NODES, False)
                here = n == d - group
                after = n == d + 1 - group
                slopes1, slopes2 = bounded_float16(slopes1), bounded_float16(slopes2)
                of_columns = tl.where(here[:, None], tl.dot(rows_of_ones, slopes1), of_columns)
                of_rows = tl.where(here[None, :], tl.dot(slopes1, columns_of_ones), of_rows)
                of_columns = tl.where(after[:, None], tl.dot(rows_of_ones, slopes2), of_columns)
                of_rows = tl.where(after[None, :], tl.dot(slopes2, columns_of_ones), of_rows)
        d = group + n
        tl.store(Part[None, :] + d[:, None] * part_size, of_columns * scale, mask=(d < STORED)[:, None])
        At = Sums[:, None] + d[None, :] * ROWS
        mask = (d < STORED)[None, :]
        tl.store(At, tl.load(At, mask=mask, other=0.0) + of_rows * scale, mask=mask)


@triton.jit
def add_sums(Sums, Part, part_size, tile, d, ROWS: tl.constexpr):
    """Add the sum over a tile's columns, one number per row, for coordinate d; store that over its rows in Part."""
    Sums += d * ROWS
    tl.store(Sums, tl.load(Sums) + tl.sum(tile, 1))
    if Part is not None:
        tl.store(Part + d * part_size, tl.sum(tile, 0))
