"""Fourier attention in Triton: online normalisation, nothing of size N x M is ever stored.

`forward` runs over blocks of queries. `backward` is launched with queries as rows (dq) and then with keys as rows (dk,
dv), or once with keys as rows, for dk, dv and parts of dq, which `add_parts` adds up. Each result has one writer:
deterministic, without atomics. Both are launched once per number of features (features.py; 0 is the printed formula),
and a launch returns at once for heads with another number.
"""

import triton
import triton.language as tl

from fourierformer.kernels.sinc.factors import (
    add_slopes,
    add_slopes_by_products,
    existing,
    feature_offsets,
    tile_weights,
)
from fourierformer.kernels.sinc.instructions import cut_to_tf32, exp2, log2, round_to_tf32
from fourierformer.kernels.sinc.printed import add_printed_slopes, printed_weights


@triton.jit
def forward(
    Q, K, V, QF, KF, Radius, Tier, Keep, Out, Lost, Norm,
    q_batch, q_head, q_token, q_width, k_batch, k_head, k_token, k_width, v_batch, v_head, v_token, v_width,
    q_features, k_features, H, N, M, eps, log2_eps,
    WIDTH: tl.constexpr, STORED: tl.constexpr, V_WIDTH: tl.constexpr, V_LOADED: tl.constexpr,
    POWER: tl.constexpr, CAUSAL: tl.constexpr, LOG: tl.constexpr, PRECISE: tl.constexpr, NODES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Compute the output of one block of queries of one head, over all keys it sees.

    Out (B H, N, V_WIDTH); Lost: its rounding error, if its dtype has 16 bits; Norm (B H, N): 1 / (eps + sum of
    weights), or its log2 where LOG. q_features, k_features: size of one head in QF, KF. Keep (B, M), or None: 0 for
    left-out keys. Their features are 0, and so are their weights; only the printed formula reads Keep.
    """
    blocks = tl.cdiv(N, ROWS)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    if tl.load(Tier + head) != NODES:
        return
    b, h = head // H, head % H
    first = (blocks - 1 - tl.program_id(0) % blocks) * ROWS  # the last rows see most keys: they start first
    queries = first + tl.arange(0, ROWS)
    e = tl.arange(0, V_LOADED)
    X = Q + b * q_batch + h * q_head + queries.to(tl.int64) * q_token
    K += b * k_batch + h * k_head
    V += b * v_batch + h * v_head
    XF = QF + head * q_features + feature_offsets(first, ROWS, STORED, NODES, PRECISE)
    KF += head * k_features
    Radius += h * WIDTH
    last = M
    if CAUSAL:
        last = tl.minimum(M, first + ROWS + (M - N))
    output = tl.zeros([ROWS, V_LOADED], tl.float32)
    top = tl.full([ROWS], 0.0, tl.float32)
    total = tl.full([ROWS], eps, tl.float32)
    if LOG:  # eps is one more key with log-weight log2(eps) and value 0
        top += log2_eps
        total = tl.where(top == float("-inf"), 0.0, 1.0)
    for start in range(0, last, COLUMNS):
        keys = start + tl.arange(0, COLUMNS)
        Y = K + keys.to(tl.int64) * k_token
        if NODES == 0:
            weights = printed_weights(
                X, Y, q_width, k_width, Radius, queries < N, keys < M, ROWS, COLUMNS, WIDTH, POWER, LOG
            )
        else:
            YF = KF + feature_offsets(start, COLUMNS, STORED, NODES, PRECISE)
            weights = tile_weights(XF, YF, ROWS, COLUMNS, STORED, POWER, LOG, PRECISE, NODES, CHUNK)
        # Tokens that do not exist, or are left out, have features 0 and weight 0.
        if NODES == 0 or (CAUSAL and _at_the_edge(first, start, N, M, ROWS, COLUMNS, KEYS=False)):
            weights = tl.where(_visible(queries, keys, N, M, CAUSAL, False), weights, float("-inf") if LOG else 0.0)
        if NODES == 0 and Keep is not None:
            weights = tl.where(_kept(queries, keys, M, Keep + b * M, False), weights, float("-inf") if LOG else 0.0)
        if LOG:
            higher = tl.maximum(top, tl.max(weights, 1))
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            weights = exp2(weights - shift[:, None])
            rescale = exp2(top - shift)
            total *= rescale
            output *= rescale[:, None]
            top = higher
        if not PRECISE:  # as the product below does; of the same weights, sum and output stay a mean of values
            weights = cut_to_tf32(weights)
        total += tl.sum(weights, 1)
        v = _load_values(V, start + _swapped(COLUMNS), M, e, v_token, v_width, V_WIDTH, PRECISE)
        output = _dot(_swap(weights), v, output, PRECISE)
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    norm = 1.0 / total
    if LOG:
        norm = tl.where(empty, float("-inf"), -top - log2(total))
    rows = head * N + queries
    tl.store(Norm + rows, norm, mask=queries < N)
    inside = (queries < N)[:, None] & (e < V_WIDTH)[None, :]
    output /= total[:, None]
    at = rows[:, None] * V_WIDTH + e[None, :]
    stored = output.to(Out.dtype.element_ty)
    tl.store(Out + at, stored, mask=inside)
    if Out.dtype.element_ty != tl.float32:
        tl.store(Lost + at, (output - stored.to(tl.float32)).to(Out.dtype.element_ty), mask=inside)


@triton.jit
def _visible(rows, columns, N, M, CAUSAL: tl.constexpr, KEYS: tl.constexpr):
    """True for pairs of a tile whose query sees the key (rows are keys where KEYS). Causal is aligned at the end."""
    queries = columns if KEYS else rows
    last = tl.minimum(queries + (M - N), M - 1) if CAUSAL else tl.full(queries.shape, 0, tl.int32) + (M - 1)
    return rows[:, None] <= last[None, :] if KEYS else columns[None, :] <= last[:, None]


@triton.jit
def _kept(rows, columns, M, Keep, KEYS: tl.constexpr):
    """True for pairs of a tile whose key is not left out."""
    return existing(rows, M, Keep)[:, None] if KEYS else existing(columns, M, Keep)[None, :]


@triton.jit
def _swapped(COUNT: tl.constexpr):
    """0 1 2 ... with the even numbers of every eight first: 0 2 4 6 1 3 5 7."""
    n = tl.arange(0, COUNT)
    return n // 8 * 8 + n % 4 * 2 + n % 8 // 4


@triton.jit
def _swap(tile):
    """The columns of a tile in the order of `_swapped`.

    In this order every thread holds, after a product on a tensor core, its operands of the next product in TF32, so
    that threads exchange none. A sum over columns may be taken in any order.
    """
    ROWS: tl.constexpr = tile.shape[0]
    COLUMNS: tl.constexpr = tile.shape[1]
    eights = tl.reshape(tile, [ROWS, COLUMNS // 8, 4, 2])
    return tl.reshape(tl.permute(eights, (0, 1, 3, 2)), [ROWS, COLUMNS])


@triton.jit
def _dot(a, b, acc, PRECISE: tl.constexpr):
    """acc + a b. TF32 keeps float32's range, which weights far below eps need; its unit cuts further digits."""
    return tl.dot(a, b, acc=acc, input_precision="tf32x3" if PRECISE else "tf32")


@triton.jit
def backward(
    X, Y, A, B, XF, YF, Table, Radius, Tier, Keep, Out, Lost, Norm, Delta, Sums, Parts, DX, DV, Moments,
    x_batch, x_head, x_token, x_width, y_batch, y_head, y_token, y_width,
    a_batch, a_head, a_token, a_width, b_batch, b_head, b_token, b_width,
    x_features, y_features, sums_size, part_size, moment_size, first_moment, H, N, M,
    WIDTH: tl.constexpr, STORED: tl.constexpr, LOADED: tl.constexpr, V_WIDTH: tl.constexpr, V_LOADED: tl.constexpr,
    POWER: tl.constexpr, CAUSAL: tl.constexpr, LOG: tl.constexpr, PRECISE: tl.constexpr, NODES: tl.constexpr,
    KEYS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradient of one block of queries (KEYS false: rows X are queries, A dout, B v) or of keys (A v, B dout).

    dS_ij = P_ij (dout_i . v_j - dout_i . y_i); d/dx_d = POWER R sum_j dS_ij sinc'(z_ijd) / sinc(z_ijd). The two sides
    differ only in the position of the numbers per query (Norm, Delta), and in dv, which belongs to the keys' side.
    The launch on the keys computes dq as well where Parts is not None: the slopes of a pair are those of the key and,
    with the other sign, of the query. Parts (B H, blocks of keys, STORED, part_size) is each block's sum of a query's
    slopes as a key sees them, which `add_parts` adds up; delta is then computed anew in every tile.
    Moments (B H, moment_size): each block's sum of (x - centre) d/d(R x), WIDTH numbers, added up by the caller; this
    launch writes from first_moment on. Sums (B H, sums_size): running sums over j in memory, because registers cannot
    be indexed; each block of rows has its own part, coordinate after coordinate. Keep as in `forward`.
    """
    row_count, column_count = N, M
    if KEYS:
        row_count, column_count = M, N
    blocks = tl.cdiv(row_count, ROWS)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    if tl.load(Tier + head) != NODES:
        return
    b, h = head // H, head % H
    block = tl.program_id(0) % blocks
    first = block * ROWS
    rows = first + tl.arange(0, ROWS)
    e = tl.arange(0, V_LOADED)
    d = tl.arange(0, LOADED)
    X += b * x_batch + h * x_head
    Y += b * y_batch + h * y_head
    FirstKey = X if KEYS else Y
    B += b * b_batch + h * b_head
    XF += head * x_features + feature_offsets(first, ROWS, STORED, NODES, PRECISE)
    YF += head * y_features
    Radius += h * WIDTH
    inside = rows < row_count
    row_values = inside[:, None] & (e < V_WIDTH)[None, :]
    at = rows.to(tl.int64)[:, None] * a_token + e[None, :] * a_width
    # Rounded before delta is computed from it: dout . v and delta, which nearly cancel, then have the same dout.
    a = _rounded(tl.load(A + b * a_batch + h * a_head + at, mask=row_values, other=0.0), PRECISE)
    begin, end = 0, column_count
    if CAUSAL:
        if KEYS:
            begin = tl.maximum(first - (M - N), 0) // COLUMNS * COLUMNS
        else:
            end = tl.minimum(M, first + ROWS + (M - N))
    if not KEYS:  # stores Delta for the launch on the keys, which comes second
        row_delta = _delta(a, Out, Lost, head * N + rows, row_values, e, V_WIDTH)
        tl.store(Delta + head * N + rows, row_delta, mask=inside)
        row_norm = tl.load(Norm + head * N + rows, mask=inside, other=0.0)
    Sums += head * sums_size + first.to(tl.int64) * STORED
    row = tl.arange(0, ROWS)
    entries = row[:, None] + d[None, :] * ROWS
    tl.store(Sums + entries, tl.zeros([ROWS, LOADED], tl.float32), mask=(d < STORED)[None, :])
    dvalues = tl.zeros([ROWS, V_LOADED], tl.float32)
    for start in range(begin, end, COLUMNS):
        tl.debug_barrier()  # in the next tile another thread may add to a sum
        columns = start + tl.arange(0, COLUMNS)
        exists = columns < column_count
        XR, YC = X + rows.to(tl.int64) * x_token, Y + columns.to(tl.int64) * y_token
        YFC = YF + feature_offsets(start, COLUMNS, STORED, NODES, PRECISE)
        if NODES == 0:
            weights = printed_weights(
                XR, YC, x_width, y_width, Radius, inside, exists, ROWS, COLUMNS, WIDTH, POWER, LOG
            )
        else:
            weights = tile_weights(XF, YFC, ROWS, COLUMNS, STORED, POWER, LOG, PRECISE, NODES, CHUNK)
        if KEYS:
            norm = tl.load(Norm + head * N + columns, mask=exists, other=0.0)[None, :]
            if Parts is None:
                delta = tl.load(Delta + head * N + columns, mask=exists, other=0.0)[None, :]
        else:
            norm, delta = row_norm[:, None], row_delta[:, None]
        shares = exp2(weights + norm) if LOG else weights * norm
        if NODES == 0 or (CAUSAL and _at_the_edge(first, start, N, M, ROWS, COLUMNS, KEYS)):
            shares = tl.where(_visible(rows, columns, N, M, CAUSAL, KEYS), shares, 0.0)
        if NODES == 0 and Keep is not None:
            shares = tl.where(_kept(rows, columns, M, Keep + b * M, KEYS), shares, 0.0)
        if KEYS:
            swapped = start + _swapped(COLUMNS)
            other = _load_values(B, swapped, column_count, e, b_token, b_width, V_WIDTH, PRECISE)
            dvalues = _dot(_swap(shares), other, dvalues, PRECISE)
        other = _load_values(B, columns, column_count, e, b_token, b_width, V_WIDTH, PRECISE)
        Part = None
        if Parts is not None:
            Part = Parts + (head * blocks + block) * (STORED * part_size) + columns
            column_values = exists[:, None] & (e < V_WIDTH)[None, :]
            delta = _delta(other, Out, Lost, head * N + columns, column_values, e, V_WIDTH)[None, :]
        zero = tl.zeros([ROWS, COLUMNS], tl.float32)
        dscores = shares * (_dot(a, tl.trans(other), zero, PRECISE) - delta)
        if NODES == 0:
            add_printed_slopes(
                Sums + row, Part, part_size, dscores, XR, YC, x_width, y_width, Radius, inside, exists, ROWS, WIDTH
            )
        elif Parts is not None and not PRECISE:
            add_slopes_by_products(
                Sums + row, Part, part_size, dscores, XF, YFC, Table, ROWS, COLUMNS, STORED, NODES, CHUNK
            )
        else:
            add_slopes(Sums + row, Part, part_size, dscores, XF, YFC, Table, ROWS, STORED, PRECISE, NODES, CHUNK)
    tl.debug_barrier()
    slopes = POWER * tl.load(Sums + entries, mask=(d < STORED)[None, :], other=0.0)
    FirstKey += d * (x_width if KEYS else y_width)
    DX += (head * row_count + rows)[:, None] * WIDTH + d[None, :]
    Moments += head * moment_size + first_moment + block * WIDTH + d
    X += rows.to(tl.int64) * x_token
    _store_slopes(slopes, X[:, None] + d[None, :] * x_width, FirstKey, Radius + d, DX, Moments, inside, d < WIDTH)
    if KEYS:
        at = (head * M + rows)[:, None] * V_WIDTH + e[None, :]
        tl.store(DV + at, dvalues.to(DV.dtype.element_ty), mask=row_values)


@triton.jit
def _delta(dout, Out, Lost, tokens, mask, e, V_WIDTH: tl.constexpr):
    """dout . y of a tile of queries."""
    at = tokens[:, None] * V_WIDTH + e[None, :]
    y = tl.load(Out + at, mask=mask, other=0.0).to(tl.float32)
    if Out.dtype.element_ty != tl.float32:
        y += tl.load(Lost + at, mask=mask, other=0.0).to(tl.float32)
    return tl.sum(dout * y, 1)


@triton.jit
def _store_slopes(slopes, X, FirstKey, Radius, DX, Moment, inside, used):
    """Store the gradient of a block of rows, from its slopes d/d(R x), and the block's moment.

    The slopes of a head sum to 0, so any centre gives the same gradient of R; near the tokens fewer digits cancel.
    """
    mask = inside[:, None] & used[None, :]
    x = tl.load(X, mask=mask, other=0.0).to(tl.float32)
    centre = tl.load(FirstKey, mask=used, other=0.0).to(tl.float32)
    tl.store(Moment, tl.sum(tl.where(mask, slopes * (x - centre[None, :]), 0.0), 0), mask=used)
    radius = tl.load(Radius, mask=used, other=0.0)
    tl.store(DX, (slopes * radius[None, :]).to(DX.dtype.element_ty), mask=mask)


@triton.jit
def add_parts(
    Q, K, Radius, Parts, DQ, Moments,
    q_batch, q_head, q_token, q_width, k_batch, k_head, k_token, k_width, part_size, moment_size, H, N, M,
    WIDTH: tl.constexpr, STORED: tl.constexpr, LOADED: tl.constexpr, POWER: tl.constexpr, CAUSAL: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """dq of one block of queries from the parts of blocks of ROWS keys (see `backward`), in their order."""
    blocks = tl.cdiv(N, ROWS)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = head // H, head % H
    block = tl.program_id(0) % blocks
    rows = block * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, LOADED)
    inside = rows < N
    key_blocks = tl.cdiv(M, ROWS)
    Parts += head * key_blocks * (STORED * part_size) + rows[:, None] + d[None, :] * part_size
    size = (STORED * part_size).to(tl.int64)
    sums = tl.zeros([ROWS, LOADED], tl.float32)
    for part in range(key_blocks):
        wrote = inside
        if CAUSAL:  # the launch on the keys leaves out tiles where no query sees a key
            wrote &= part * ROWS <= rows + (M - N)
        sums += tl.load(Parts + part * size, mask=wrote[:, None] & (d < WIDTH)[None, :], other=0.0)
    X = Q + b * q_batch + h * q_head + rows.to(tl.int64)[:, None] * q_token + d[None, :] * q_width
    FirstKey = K + b * k_batch + h * k_head + d * k_width
    DQ += (head * N + rows)[:, None] * WIDTH + d[None, :]
    Moments += head * moment_size + block * WIDTH + d
    _store_slopes(-POWER * sums, X, FirstKey, Radius + h * WIDTH + d, DQ, Moments, inside, d < WIDTH)


@triton.jit
def _at_the_edge(first, start, N, M, ROWS: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr):
    """Whether a tile of rows from `first` and columns from `start` holds pairs that a causal mask hides."""
    if KEYS:
        return first + ROWS - 1 > start + (M - N)
    return start + COLUMNS - 1 > first + (M - N)


@triton.jit
def _load_values(V, tokens, count, e, token, width, V_WIDTH: tl.constexpr, PRECISE: tl.constexpr):
    """Values [tokens, value coordinates], 0 for tokens and coordinates that do not exist."""
    at = tokens.to(tl.int64)[:, None] * token + e[None, :] * width
    return _rounded(tl.load(V + at, mask=(tokens < count)[:, None] & (e < V_WIDTH)[None, :], other=0.0), PRECISE)


@triton.jit
def _rounded(x, PRECISE: tl.constexpr):
    """x in float32, rounded to TF32 unless PRECISE; numbers of 16 bits are exact in TF32."""
    if PRECISE or x.dtype != tl.float32:
        return x.to(tl.float32)
    return round_to_tf32(x)
