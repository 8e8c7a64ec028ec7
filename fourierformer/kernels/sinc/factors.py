"""sinc(R (x_i - y_j)) of one coordinate for a tile of pairs, in Triton: as a matrix product of features, or as printed.

A sine per (query, key, coordinate) costs 30 and more instructions. sinc is the mean of a cosine over a range of
frequencies, and a quadrature turns that into a matrix product:

    sinc(z) = int_0^1 cos(t z) dt = sum_h w_h cos(t_h z),       z = R (x - y)
            = sum_h w_h [cos(t_h R x) cos(t_h R y) + sin(t_h R x) sin(t_h R y)]

Eight nodes, so 16 features, are one step of a tensor core and hold for |z| <= 16; 16 nodes for |z| <= 42. The
derivative is such a product too. README.md of this folder has the derivation, the accuracy and the counts.

Features, sqrt(w) cos(t R x) and sqrt(w) sin(t R x) in float16, lie in panels of 64 tokens: (heads, panels, parts,
coordinates, 64, features), the features in blocks of eight cosines and their eight sines. A second part, in the float32
class only, holds the rounding error of the first.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
HALF_PI = tl.constexpr(1.5707963267948966)
MOST_ROWS = tl.constexpr(128)  # rows or columns of the largest tile: features of so many tokens exist beyond the last
PANEL = tl.constexpr(64)
FAR = tl.constexpr(4.0e6)  # |z| from which float32 cannot resolve the phase of sin z
HUGE = tl.constexpr(1e30)  # larger arguments are replaced by this, so that nothing overflows


@triton.jit
def feature_offsets(first, COUNT: tl.constexpr, STORED: tl.constexpr, NODES: tl.constexpr, PRECISE: tl.constexpr):
    """Offsets, within their head, of the features of COUNT tokens from `first` on: first part, coordinate 0.

    `first` is a multiple of COUNT, and COUNT a power of two: so the summand that depends on `first` is one number for
    all tokens. It has 64 bits, because a long sequence has more than 2^31 features (64 coordinates in the float32
    class: 2^19 tokens).
    """
    SIZE: tl.constexpr = PANEL * STORED * NODES * (PRECISE + 1)  # of a panel
    n = tl.arange(0, COUNT)
    first = tl.cast(first, tl.int64)
    return first // PANEL * SIZE + first % PANEL * NODES + (n // PANEL * SIZE + n % PANEL * NODES)


@triton.jit
def existing(tokens, count, Keep):
    """True for tokens that exist: not behind the last one, and not left out (Keep: 0 for those that are)."""
    exists = tokens < count
    if Keep is not None:
        exists = tl.load(Keep + tokens, mask=exists, other=0) != 0
    return exists


@triton.jit
def product(X, Y, LOST: tl.constexpr, NODES: tl.constexpr, PRECISE: tl.constexpr, AGAIN: tl.constexpr):
    """sinc(z) of a tile. X, Y: pointers to the tokens' features; LOST: offset from a feature to its rounding error.

    AGAIN: the same product in a form that the compiler does not recognise as the same. Otherwise it would keep the
    tiles of the first time, and there are not enough registers for all coordinates.
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
    # The attribute means nothing for float16, but makes two products different.
    return tl.dot(rows, tl.trans(columns), acc=acc, input_precision="tf32" if AGAIN else "ieee")


# The printed formula, for arguments too large or too small for products.


@triton.jit
def argument(x, y, radius):
    """z = R (x_i - y_j), at most HUGE (by a comparison, so that NaN stays)."""
    z = radius * (x[:, None] - y[None, :])
    return tl.where(tl.abs(z) > HUGE, HUGE, z)


@triton.jit
def sinc(z):
    """|sin z / z|: even powers drop the sign."""
    sine, _ = _sine_cosine(z)
    return tl.where(z == 0, 1.0, tl.abs(sine / tl.where(z == 0, 1.0, z)))


@triton.jit
def log_sinc_slope(z):
    """d/dz log |sinc z| = cot z - 1/z; by its series below 0.5; 0 where the sine is 0, whose weight is 0 and flat."""
    sine, cosine = _sine_cosine(z)
    near = tl.abs(z) < 0.5
    safe = near | (sine == 0)
    closed = cosine / tl.where(safe, 1.0, sine) - 1.0 / tl.where(safe, 1.0, z)
    u = z * z
    series = -z * (1 / 3 + u * (1 / 45 + u * (2 / 945 + u * (1 / 4725 + u * (2 / 93555 + u * (1382 / 638512875))))))
    return tl.where(near, series, tl.where(sine == 0, 0.0, closed))


@triton.jit
def _sine_cosine(z):
    """Sine and cosine of z up to one common sign, from z minus the nearest multiple of pi. Beyond FAR those of 1."""
    k = tl.floor(z * (1 / (2 * HALF_PI)) + 0.5)
    r = tl.fma(k, -3.140625, z)  # pi in three parts, so short that k times the first two is exact
    r = tl.fma(k, -9.670257568359375e-4, r)
    r = tl.fma(k, -6.277114152908325e-7, r)
    r = tl.where(tl.abs(z) > FAR, 1.0, r)
    u = r * r
    sine = u * (-1 / 5040 + u * (1 / 362880 + u * (-1 / 39916800 + u * (1 / 6227020800))))
    sine = r * (1.0 + u * (-1 / 6 + u * (1 / 120 + sine)))
    cosine = u * (1 / 40320 + u * (-1 / 3628800 + u * (1 / 479001600 + u * (-1 / 87178291200))))
    return sine, 1.0 + u * (-0.5 + u * (1 / 24 + u * (-1 / 720 + cosine)))


@triton.jit
def log2(x):
    """lg2.approx: absolute error 2^-22. tl.log2 would expand to 15 instructions."""
    if INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def exp2(x):
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def reciprocal(x):
    """rcp.approx: one unit in the last place."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
