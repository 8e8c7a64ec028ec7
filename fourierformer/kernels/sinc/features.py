"""Features of queries and keys for the fused kernels, in Triton: how many each head needs, and the features."""

import triton
import triton.language as tl

from fourierformer.kernels.sinc.factors import HALF_PI, MOST_ROWS, PANEL, existing, feature_offsets
from fourierformer.kernels.sinc.instructions import approximate_cosine, approximate_sine

# Launch option of both kernels. An angle is split without loss into a rounded product and its rounding error; fusing
# the product with a sum would leave it unrounded in one of the two. (tl.fma stays.)
EXACT = {"enable_fp_fusion": False}
# Largest |z| for 16 and for 32 features per coordinate, with errors of 1e-7.
REACH_16, REACH_32 = tl.constexpr(16.0), tl.constexpr(42.0)
RANGED = tl.constexpr(2048)  # numbers whose range a program takes at once: 16 a thread
# |z| below which float16 cannot represent the rounding errors of features; |R x| up to which a split product gives the
# angle to rounding.
NEAREST, FURTHEST = tl.constexpr(2e-2), tl.constexpr(32768.0)


@triton.jit
def choose_nodes(
    Q, K, Radius, Tier,
    q_batch, q_head, q_token, q_width, k_batch, k_head, k_token, k_width, H, N, M,
    WIDTH: tl.constexpr, LOADED: tl.constexpr,
):  # fmt: skip
    """Store the number of features per coordinate of each head, from its largest |z|: 16 or 32, or 0 for the printed
    formula, where features would lose too many digits. On the device, because a host decision would stop the stream."""
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    d = tl.arange(0, LOADED)
    used = d < WIDTH
    q_low, q_high = _range(Q + b * q_batch + h * q_head + d[None, :] * q_width, q_token, N, used, LOADED)
    k_low, k_high = _range(K + b * k_batch + h * k_head + d[None, :] * k_width, k_token, M, used, LOADED)
    radius = tl.abs(tl.load(Radius + h * WIDTH + d, mask=used, other=0.0))
    reach = tl.max(radius * tl.maximum(q_high - k_low, k_high - q_low), 0)
    furthest = tl.max(radius * tl.maximum(tl.maximum(q_high, k_high), -tl.minimum(q_low, k_low)), 0)
    nodes = tl.where(reach <= REACH_16, 16, tl.where(reach <= REACH_32, 32, 0))
    tl.store(Tier + head, tl.where((reach >= NEAREST) & (furthest <= FURTHEST), nodes, 0))


@triton.jit
def _range(X, token, N, used, LOADED: tl.constexpr):
    """Smallest and largest number of each coordinate; minus and plus infinity where one is NaN."""
    TOKENS: tl.constexpr = max(1, RANGED // LOADED)
    low = tl.full([TOKENS, LOADED], float("inf"), tl.float32)
    high = tl.full([TOKENS, LOADED], float("-inf"), tl.float32)
    for start in range(0, N, TOKENS):
        n = start + tl.arange(0, TOKENS)
        inside = (n < N)[:, None] & used[None, :]
        x = tl.load(X + n.to(tl.int64)[:, None] * token, mask=inside, other=0.0).to(tl.float32)
        low = tl.minimum(low, tl.where(inside, tl.where(x == x, x, float("-inf")), float("inf")))
        high = tl.maximum(high, tl.where(inside, tl.where(x == x, x, float("inf")), float("-inf")))
    # once, not per step: threads wait for each other. Coordinates beyond WIDTH have no influence.
    return tl.where(used, tl.min(low, 0), 0.0), tl.where(used, tl.max(high, 0), 0.0)


@triton.jit
def write_features(
    Q, K, Radius, Tier, Keep, Table, QF, KF,
    q_batch, q_head, q_token, q_width, k_batch, k_head, k_token, k_width, q_features, k_features, H, N, M,
    WIDTH: tl.constexpr, STORED: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Write one panel of features of one head: programs of its queries come first, then those of its keys.
    Q (B, H, N, WIDTH) and K of any strides. q_features, k_features: size of one head in QF, KF."""
    q_panels, k_panels = _panels(N), _panels(M)
    head = (tl.program_id(0) // (q_panels + k_panels)).to(tl.int64)
    panel = tl.program_id(0) % (q_panels + k_panels)
    nodes = tl.load(Tier + head)
    b, h = head // H, head % H
    Radius += h * WIDTH
    if panel < q_panels:
        Q += b * q_batch + h * q_head
        _write_panel(
            Q, q_token, q_width, panel, N, None, Radius, Table, QF + head * q_features, nodes, WIDTH, STORED, PRECISE
        )
    else:
        K += b * k_batch + h * k_head
        panel -= q_panels
        if Keep is not None:  # (B, M), 0 for left-out keys
            Keep += b * M
        _write_panel(
            K, k_token, k_width, panel, M, Keep, Radius, Table, KF + head * k_features, nodes, WIDTH, STORED, PRECISE
        )


@triton.jit
def _panels(N):
    """Panels of N tokens, padded to the rows of the largest tile."""
    return tl.cdiv(N, MOST_ROWS) * (MOST_ROWS // PANEL)


@triton.jit
def _write_panel(
    X, token, width, panel, N, Keep, Radius, Table, Features, nodes,
    WIDTH: tl.constexpr, STORED: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Write a panel of one sequence: zeros for tokens that do not exist or are left out. A coordinate beyond WIDTH is
    0: sinc(0) = 1."""
    if nodes == 16:
        _write_nodes(X, token, width, panel, N, Keep, Radius, Table, Features, WIDTH, STORED, PRECISE, 16)
    if nodes == 32:
        _write_nodes(X, token, width, panel, N, Keep, Radius, Table + 48, Features, WIDTH, STORED, PRECISE, 32)


@triton.jit
def _write_nodes(
    X, token, width, panel, N, Keep, Radius, Table, Features,
    WIDTH: tl.constexpr, STORED: tl.constexpr, PRECISE: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    n = panel * PANEL + tl.arange(0, PANEL)
    X += n.to(tl.int64) * token
    Features += feature_offsets(panel * PANEL, PANEL, STORED, NODES, PRECISE)[:, None]
    c = tl.arange(0, 8)[None, :]
    exists = existing(n, N, Keep)
    inside = exists[:, None]
    for d in range(0, STORED):
        x = tl.load(X + d * width, mask=exists & (d < WIDTH), other=0.0).to(tl.float32)
        radius = tl.load(Radius + d, mask=d < WIDTH, other=0.0)
        scaled = x * radius
        lost = tl.fma(x, radius, -scaled)
        for first in tl.static_range(0, NODES, 16):
            T = Table + first * 3 + c
            sine, cosine = _sine_cosine_quarters(scaled[:, None], lost[:, None], tl.load(T), PRECISE)
            root = tl.where(inside, tl.load(T + 16), 0.0)
            at = Features + (d * (PANEL * NODES) + first + c)
            _store(at, cosine * root, STORED * PANEL * NODES, PRECISE)
            _store(at + 8, sine * root, STORED * PANEL * NODES, PRECISE)


@triton.jit
def _store(at, values, lost: tl.constexpr, PRECISE: tl.constexpr):
    high = values.to(tl.float16)
    tl.store(at, high)
    if PRECISE:
        tl.store(at + lost, (values - high.to(tl.float32)).to(tl.float16))


@triton.jit
def _sine_cosine_quarters(x, lost, rate, PRECISE: tl.constexpr):
    """Sine and cosine of pi/2 (x + lost) rate for |x rate| < 2^22: to float32 rounding where PRECISE, else to 2^-20,
    which rounding to float16 hides."""
    to_integer = 12582912.0  # 1.5 * 2^23: adding it rounds
    if not PRECISE:
        x, lost = 0.25 * x, 0.25 * lost  # whole turns are left out, not quarters
    product = x * rate
    k = (product + to_integer) - to_integer
    # x rate - k with one rounding. tl.fma, because nothing else is fused here (EXACT).
    angle = tl.fma(lost, rate, tl.fma(x, rate, -k)) * HALF_PI
    if not PRECISE:
        return approximate_sine(4.0 * angle), approximate_cosine(4.0 * angle)
    square = angle * angle
    # Taylor up to (pi/4)^10
    sine = tl.fma(square, tl.fma(square, tl.fma(square, 1 / 362880, -1 / 5040), 1 / 120), -1 / 6)
    sine = tl.fma(angle * square, sine, angle)
    cosine = tl.fma(square, tl.fma(square, tl.fma(square, -1 / 3628800, 1 / 40320), -1 / 720), 1 / 24)
    cosine = tl.fma(square, tl.fma(square, cosine, -0.5), 1.0)
    quarter = k.to(tl.int32)
    odd = (quarter & 1) != 0
    of_sine, of_cosine = tl.where(odd, cosine, sine), tl.where(odd, sine, cosine)
    of_sine = tl.where((quarter & 2) != 0, -of_sine, of_sine)
    return of_sine, tl.where(((quarter + 1) & 2) != 0, -of_cosine, of_cosine)
