"""The two kernels of chunk_delta_rule: all chunks of a step at once, then the chunks of each row in sequence.

A chunk of C tokens, with G[i] the sum of the logarithms of its decays up to and including token i; exp(G) and
products with it are element by element, for a head or for each channel c of its key:

    A[i, j] = beta[i] sum_c k[i, c] k[j, c] exp(G[i, c] - G[j, c])       j < i;      M = (1 + A)^-1
    P[i, j] = scale sum_c q[i, c] k[j, c] exp(G[i, c] - G[j, c])         j <= i
    fresh   = M (beta v)      erase = M (beta exp(G) k)
    read    = scale q exp(G)      kept = k exp(G[C-1] - G)      decay = exp(G[C-1])
    new     = fresh - erase S      what is written at each key, where S is the state before the chunk
    o       = read S + P new
    S      <- decay S + kept^T new

Halving finds pairs and the inverse: two tokens j < i lie in the two halves of exactly one block of 2 h
tokens. With A_h the part of A that joins the halves of such blocks, and M inverted within the halves,

    M <- M - M A_h M              for h = 1, 2, 4 .. C / 2, as exact as substitution

Exponents are never positive. Those of a head are differences of sums in float64; of channels, sums of the
logarithms between two tokens as gla/chunks.py has them: with m the first token of a second half

    exp(G[i] - G[j]) = exp(sum of m .. i) exp(sum of j + 1 .. m - 1)

For 16-bit inputs the products with A, P and M have the operands that PRECISION names; read, kept, erase,
fresh, P, new and the operand S, not the state that is kept, are rounded to 16 bits. Sums are float32.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from fastkernels.kernels.ragged import row_of_tile
from fastkernels.kernels.selective_scan.triton import softplus

# exp of it, and of all below, is 0; a 16-bit float holds it.
LOWEST = tl.constexpr(-60000.0)


@triton.jit
def over_length(square_sum, EPS: tl.constexpr):
    return tl.div_rn(tl.full(square_sum.shape, 1.0, tl.float32), tl.sqrt_rn(square_sum + EPS))


@triton.jit
def log_decay(raw, bias, rate):
    """At most 0, of what softplus makes a step."""
    return tl.maximum(-rate * softplus(raw + bias), LOWEST)


@triton.jit
def _exp_of_sums(taken, logs, NARROW: tl.constexpr):
    """exp of the sum of the logarithms [C, channels] that each row of `taken` [C, C] names. 16-bit products
    get them in two parts, which have 16 bits together."""
    if tl.float32 == NARROW:
        total = tl.dot(taken.to(tl.float32), logs, input_precision="ieee")
    else:
        high = logs.to(NARROW)
        low = (logs - high.to(tl.float32)).to(NARROW)
        total = tl.dot(taken.to(NARROW), low, tl.dot(taken.to(NARROW), high))
    return tl.exp(total)


@triton.jit(do_not_specialize=["num_rows"])
def _within(query, key, value, gate, beta, a_log, bias, starts,
            read, kept, erase, fresh, decay, weights, scale, num_rows,
            q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, g_stride_t, g_stride_h,
            b_stride_t,
            H: tl.constexpr, SHARED: tl.constexpr, K: tl.constexpr, V: tl.constexpr, CHANNELS: tl.constexpr,
            EPS: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, DIMS: tl.constexpr,
            VALUES: tl.constexpr, SLICE: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """All but `new`, o and S, of one chunk and head of values: whole tiles, zeros where the row has no
    token."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = row_of_tile(starts, num_rows, tile, C)
    origin = tl.load(starts)
    row_start = tl.load(starts + row) - origin
    query_len = tl.load(starts + row + 1) - origin - row_start
    first = (tile - row_start // C - row) * C  # chunks count from a row's first token
    if first >= query_len:
        return

    t = tl.arange(0, C)
    i, j = t[:, None], t[None, :]
    real = first + t < query_len
    held = real[:, None]
    token = (row_start + first).to(tl.int64) + t
    q_at = query + (token * q_stride_t + (head // SHARED) * q_stride_h)[:, None]
    k_at = key + (token * k_stride_t + (head // SHARED) * k_stride_h)[:, None]
    v_at = value + (token * v_stride_t + head * v_stride_h)[:, None]
    g_at = gate + token * g_stride_t + head * g_stride_h
    block = tile.to(tl.int64) * H + head
    rate = tl.exp(tl.load(a_log + head))
    # Where there is no token, nothing is decayed or written.
    b = tl.load(beta + token * b_stride_t + head, mask=real, other=0.0).to(tl.float32)
    b = tl.where(real, tl.sigmoid(b), 0.0)

    every = tl.arange(0, DIMS)[None, :]
    whole = tl.load(q_at + every, mask=held & (every < K), other=0.0).to(tl.float32)
    q_scale = over_length(tl.sum(whole * whole, axis=1), EPS) * scale
    whole = tl.load(k_at + every, mask=held & (every < K), other=0.0).to(tl.float32)
    k_scale = over_length(tl.sum(whole * whole, axis=1), EPS)
    if CHANNELS == 1:
        raw = tl.load(g_at, mask=real, other=0.0).to(tl.float32)
        logs = tl.where(real, log_decay(raw, tl.load(bias + head).to(tl.float32), rate), 0.0)
        sums = tl.cumsum(logs.to(tl.float64), axis=0)
        total = tl.sum(tl.where(t == C - 1, sums, 0.0), axis=0)
        high = sums.to(tl.float32)
        low = (sums - high).to(tl.float32)
        between = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
        between = tl.exp(tl.minimum(between, 0.0))
        from_start = tl.exp(high)[:, None]
        to_end = tl.exp((total - sums).to(tl.float32))[:, None]
    a = tl.zeros([C, C], tl.float32)
    p = tl.zeros([C, C], tl.float32)
    for begin in range(0, DIMS, SLICE):
        c = begin + tl.arange(0, SLICE)
        mask = held & (c < K)[None, :]
        q = tl.load(q_at + c[None, :], mask=mask, other=0.0).to(tl.float32) * q_scale[:, None]
        k = tl.load(k_at + c[None, :], mask=mask, other=0.0).to(tl.float32) * k_scale[:, None]
        if CHANNELS == 1:
            a += tl.dot(k, tl.trans(k), input_precision=PRECISION)
            p += tl.dot(q, tl.trans(k), input_precision=PRECISION)
            tl.store(decay + block * DIMS + c, tl.zeros([SLICE], tl.float32) + tl.exp(total.to(tl.float32)))
        else:
            offset = tl.load(bias + head * K + c, mask=c < K, other=0.0).to(tl.float32)
            raw = tl.load(g_at[:, None] + c[None, :], mask=mask, other=0.0).to(tl.float32)
            logs = tl.where(mask, log_decay(raw, offset[None, :], rate), 0.0)
            from_start = _exp_of_sums(j <= i, logs, read.dtype.element_ty)
            to_end = _exp_of_sums(j > i, logs, read.dtype.element_ty)
            tl.store(decay + block * DIMS + c, tl.exp(tl.sum(logs, axis=0)))
            p += tl.where(i == j, tl.dot(q, tl.trans(k), input_precision=PRECISION), 0.0)
            for level in range(LEVELS):
                half_i, half_j = i >> level, j >> level
                is_second = half_i % 2 == 1
                # In a second half the logarithms up to a token, in a first half those after it.
                taken = (half_i == half_j) & ((j <= i) == is_second)
                x = _exp_of_sums(taken, logs, read.dtype.element_ty)
                joined = is_second & (half_i == half_j + 1)
                k_x = tl.trans(k * x)
                a += tl.where(joined, tl.dot(k * x, k_x, input_precision=PRECISION), 0.0)
                p += tl.where(joined, tl.dot(q * x, k_x, input_precision=PRECISION), 0.0)
        out = (block * C + i) * DIMS + c[None, :]
        tl.store(read + out, (q * from_start).to(read.dtype.element_ty))
        tl.store(kept + out, (k * to_end).to(kept.dtype.element_ty))
    if CHANNELS == 1:
        a *= between
        p = tl.where(j <= i, p * between, 0.0)
    a *= b[:, None]
    tl.store(weights + (block * C + i) * C + j, p.to(weights.dtype.element_ty))

    m = tl.where(i == j, 1.0, 0.0) - tl.where((i % 2 == 1) & (i == j + 1), a, 0.0)
    for level in range(1, LEVELS):
        half_i, half_j = i >> level, j >> level
        joins = tl.where((half_i % 2 == 1) & (half_i == half_j + 1), a, 0.0)
        m -= tl.dot(tl.dot(m, joins, input_precision=PRECISION), m, input_precision=PRECISION)
    m *= b[None, :]
    for begin in range(0, DIMS, SLICE):
        c = begin + tl.arange(0, SLICE)
        mask = held & (c < K)[None, :]
        k = tl.load(k_at + c[None, :], mask=mask, other=0.0).to(tl.float32) * k_scale[:, None]
        if CHANNELS != 1:
            offset = tl.load(bias + head * K + c, mask=c < K, other=0.0).to(tl.float32)
            raw = tl.load(g_at[:, None] + c[None, :], mask=mask, other=0.0).to(tl.float32)
            logs = tl.where(mask, log_decay(raw, offset[None, :], rate), 0.0)
            from_start = _exp_of_sums(j <= i, logs, read.dtype.element_ty)
        found = tl.dot(m, k * from_start, input_precision=PRECISION)
        tl.store(erase + (block * C + i) * DIMS + c[None, :], found.to(erase.dtype.element_ty))
    for begin in range(0, VALUES, SLICE):
        d = begin + tl.arange(0, SLICE)[None, :]
        v = tl.load(v_at + d, mask=held & (d < V), other=0.0).to(tl.float32)
        found = tl.dot(m, v, input_precision=PRECISION)
        tl.store(fresh + (block * C + i) * VALUES + d, found.to(fresh.dtype.element_ty))


@triton.jit
def _across(read, kept, erase, fresh, decay, weights, state, rows, starts, out,
            H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DIMS: tl.constexpr,
            VALUES: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    """All chunks of one row, for one head and some columns of the value.

    With the state transposed: as the first operand of a product it stays in the registers that hold it.
    """
    head, b = tl.program_id(1), tl.program_id(2)
    c, d = tl.arange(0, DIMS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    t = tl.arange(0, C)
    row_start = tl.load(starts + b) - tl.load(starts)
    query_len = tl.load(starts + b + 1) - tl.load(starts + b)
    s_at = state + ((tl.load(rows + b).to(tl.int64) * H + head) * K + c)[:, None] * V + d[None, :]
    in_state = (c < K)[:, None] & (d < V)[None, :]
    s = tl.trans(tl.load(s_at, mask=in_state, other=0.0))
    o_at = out + (row_start.to(tl.int64) * H + head) * V + d[None, :]
    first_tile = (row_start // C + b).to(tl.int64)
    for n in tl.range(0, tl.cdiv(query_len, C), num_stages=STAGES):
        block = (first_tile + n) * H + head
        in_block = t[:, None] * DIMS + c[None, :]
        erase_CK = tl.load(erase + block * (C * DIMS) + in_block)
        read_CK = tl.load(read + block * (C * DIMS) + in_block)
        kept_CK = tl.load(kept + block * (C * DIMS) + in_block)
        p = tl.load(weights + block * (C * C) + (t[:, None] * C + t[None, :]))
        fresh_CV = tl.load(fresh + block * (C * VALUES) + (t[:, None] * VALUES + d[None, :]))
        decay_K = tl.load(decay + block * DIMS + c)

        narrow = s.to(read_CK.dtype)
        new = tl.trans(fresh_CV).to(tl.float32)
        new -= tl.dot(narrow, tl.trans(erase_CK), input_precision=PRECISION)
        written = new.to(read_CK.dtype)
        o = tl.dot(narrow, tl.trans(read_CK), input_precision=PRECISION)
        o = tl.dot(written, tl.trans(p), o, input_precision=PRECISION)
        s = tl.dot(written, kept_CK, s * decay_K[None, :], input_precision=PRECISION)
        token = n * C + t[:, None]
        mask = (token < query_len) & (d < V)[None, :]
        tl.store(o_at + token.to(tl.int64) * (H * V), tl.trans(o).to(out.dtype.element_ty), mask=mask)
    tl.store(s_at, tl.trans(s), mask=in_state)
