"""Features of queries and keys for the fused kernels, in Triton: first which each head needs, then the features."""

import triton
import triton.language as tl

from fourierformer.kernels.sinc.factors import HALF_PI, MOST_ROWS, PANEL, place

# Launch option of both kernels. Fusing a product with a sum would leave it unrounded in one place and rounded in
# another, and the difference of the two is what splitting an angle without loss stands on. (tl.fma stays.)
EXACT = {"enable_fp_fusion": False}
# Largest |z| that 16 and 32 features per coordinate are good for (1e-7 off).
# |z| below which what float16 lost runs out of exponent; |R x| up to which a split product gives the angle to rounding.
REACH_16, REACH_32 = tl.constexpr(16.0), tl.constexpr(42.0)
NEAREST, FURTHEST = tl.constexpr(2e-2), tl.constexpr(32768.0)


@triton.jit
def choose_nodes(
    Q, K, Radius, Tier,
    q_batch, q_head, q_token, q_width, k_batch, k_head, k_token, k_width, H, N, M,
    WIDTH: tl.constexpr, LOADED: tl.constexpr,
):  # fmt: skip
    """Per head, 16 or 32: the features per coordinate that its largest |z| needs, or 0: the printed formula, where
    products would lose its digits. Chosen on the device, because asking the host would stop the stream.
    """
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
    """Smallest and largest number of each coordinate; minus and plus infinity where one is not a number."""
    low = tl.full([LOADED], float("inf"), tl.float32)
    high = tl.full([LOADED], float("-inf"), tl.float32)
    for start in range(0, N, PANEL):
        n = start + tl.arange(0, PANEL)
        inside = (n < N)[:, None] & used[None, :]
        x = tl.load(X + n.to(tl.int64)[:, None] * token, mask=inside, other=0.0).to(tl.float32)
        low = tl.minimum(low, tl.min(tl.where(inside, tl.where(x == x, x, float("-inf")), float("inf")), 0))
        high = tl.maximum(high, tl.max(tl.where(inside, tl.where(x == x, x, float("inf")), float("-inf")), 0))
    return tl.where(used, low, 0.0), tl.where(used, high, 0.0)  # coordinates that do not exist do not count


@triton.jit
def write_features(
    X, Radius, Tier, Table, Features, batch, head_stride, token, width, H, N, head_size,
    WIDTH: tl.constexpr, STORED: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """X (B, H, N, WIDTH) of any strides -> one panel of features; head_size: of one head in Features.

    Zeros for tokens that do not exist; coordinates that do not exist are 0, and sinc(0) = 1.
    """
    panels = tl.cdiv(N, MOST_ROWS) * (MOST_ROWS // PANEL)
    head = (tl.program_id(0) // panels).to(tl.int64)
    nodes = tl.load(Tier + head)
    n = tl.program_id(0) % panels * PANEL + tl.arange(0, PANEL)
    X += head // H * batch + head % H * head_stride + n.to(tl.int64) * token
    Radius += head % H * WIDTH
    Features += head * head_size
    if nodes == 16:
        _write_panel(X, width, n, N, Radius, Table, Features, WIDTH, STORED, PRECISE, 16)
    if nodes == 32:
        _write_panel(X, width, n, N, Radius, Table + 64, Features, WIDTH, STORED, PRECISE, 32)


@triton.jit
def _write_panel(
    X, width, n, N, Radius, Table, Features,
    WIDTH: tl.constexpr, STORED: tl.constexpr, PRECISE: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    Features += place(n, STORED, NODES, PRECISE)[:, None]
    c = tl.arange(0, 16)[None, :]
    for d in range(0, STORED):
        x = tl.load(X + d * width, mask=(n < N) & (d < WIDTH), other=0.0).to(tl.float32)
        radius = tl.load(Radius + d, mask=d < WIDTH, other=0.0)
        scaled = x * radius
        lost = tl.fma(x, radius, -scaled)
        for first in tl.static_range(0, NODES, 16):
            T = Table + first * 4 + c
            values = _cos_quarters(scaled[:, None], lost[:, None], tl.load(T), tl.load(T + 16)) * tl.load(T + 32)
            values = tl.where((n < N)[:, None], values, 0.0)
            high = values.to(tl.float16)
            at = Features + (d * (PANEL * NODES) + first + c)
            tl.store(at, high)
            if PRECISE:
                tl.store(at + STORED * PANEL * NODES, (values - high.to(tl.float32)).to(tl.float16))


@triton.jit
def _cos_quarters(x, lost, rate, quarter):
    """cos(pi/2 ((x + lost) rate + quarter)) to float32 rounding, for |x rate| < 2^22 and an integer quarter.

    The product is split without loss into the nearest integer and a rest of at most 1/2; Taylor up to (pi/4)^10.
    """
    to_integer = 12582912.0  # 1.5 * 2^23: adding it rounds
    turns = x * rate
    k = (turns + to_integer) - to_integer
    angle = ((turns - k) + (tl.fma(x, rate, -turns) + lost * rate)) * HALF_PI
    square = angle * angle
    sine = angle * (1.0 + square * (-1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square * (1 / 362880)))))
    cosine = square * (1 / 24 + square * (-1 / 720 + square * (1 / 40320 + square * (-1 / 3628800))))
    turn = (k + quarter).to(tl.int32)
    value = tl.where((turn & 1) != 0, -sine, 1.0 + square * (-0.5 + cosine))
    return tl.where((turn & 2) != 0, -value, value)
