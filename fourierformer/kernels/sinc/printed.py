"""The printed formula for a tile of pairs, in Triton: for arguments too large or too small for products of features.

One sine per query, key and coordinate, from q and k themselves.
"""

import triton
import triton.language as tl

from fourierformer.kernels.sinc.factors import HALF_PI, add_sums, raised
from fourierformer.kernels.sinc.instructions import log2

FAR = tl.constexpr(4.0e6)  # |z| from which float32 cannot resolve the phase of sin z
HUGE = tl.constexpr(1e30)  # larger arguments are replaced by this, so that nothing overflows


@triton.jit
def printed_weights(
    X, Y, x_width, y_width, Radius, x_inside, y_inside,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, POWER: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """As `tile_weights`, from q and k themselves: one sine per pair and coordinate."""
    weights = tl.full([ROWS, COLUMNS], 1.0, tl.float32)
    scores = tl.zeros([ROWS, COLUMNS], tl.float32)
    for d in range(0, WIDTH):
        factors = _sinc(_argument(X, Y, x_width, y_width, Radius, x_inside, y_inside, d))
        if LOG:
            scores += log2(factors)
        else:
            weights *= factors
    return scores * POWER if LOG else raised(weights, POWER)


@triton.jit
def add_printed_slopes(
    Sums, Part, part_size, dscores, X, Y, x_width, y_width, Radius, x_inside, y_inside,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """As `add_slopes`, from q and k themselves."""
    for d in range(0, WIDTH):
        z = _argument(X, Y, x_width, y_width, Radius, x_inside, y_inside, d)
        add_sums(Sums, Part, part_size, dscores * _log_sinc_slope(z), d, ROWS)


@triton.jit
def _argument(X, Y, x_width, y_width, Radius, x_inside, y_inside, d):
    """z_d = R_d (x_id - y_jd) of a tile, at most HUGE (by a comparison, so that NaN stays)."""
    x = tl.load(X + d * x_width, mask=x_inside, other=0.0).to(tl.float32)
    y = tl.load(Y + d * y_width, mask=y_inside, other=0.0).to(tl.float32)
    z = tl.load(Radius + d) * (x[:, None] - y[None, :])
    return tl.where(tl.abs(z) > HUGE, HUGE, z)


@triton.jit
def _sinc(z):
    """|sin z / z|: even powers drop the sign."""
    sine, _ = _sine_cosine(z)
    return tl.where(z == 0, 1.0, tl.abs(sine / tl.where(z == 0, 1.0, z)))


@triton.jit
def _log_sinc_slope(z):
    """d/dz log |sinc z| = cot z - 1/z; its series below 0.5; 0 where the sine is 0: that weight is 0 and flat."""
    sine, cosine = _sine_cosine(z)
    near = tl.abs(z) < 0.5
    safe = near | (sine == 0)
    closed = cosine / tl.where(safe, 1.0, sine) - 1.0 / tl.where(safe, 1.0, z)
    u = z * z
    series = -z * (1 / 3 + u * (1 / 45 + u * (2 / 945 + u * (1 / 4725 + u * (2 / 93555 + u * (1382 / 638512875))))))
    return tl.where(near, series, tl.where(sine == 0, 0.0, closed))


@triton.jit
def _sine_cosine(z):
    """Sine and cosine of z up to a common sign, from z minus the nearest multiple of pi; of 1 beyond FAR."""
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
