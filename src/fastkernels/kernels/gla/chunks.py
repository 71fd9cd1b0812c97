"""The two kernels of chunk_gla: all chunks of a step at once, then the chunks of each row in sequence.

A chunk of C tokens, with G[i] the sum of its gates up to and including token i:

    P[i, j] = scale sum_c q[i, c] k[j, c] exp(G[i, c] - G[j, c])         j <= i
    read[i] = scale q[i] exp(G[i])      kept[j] = k[j] exp(G[C-1] - G[j])      decay = exp(G[C-1])
    o[i]    = read[i] S + sum_j P[i, j] v[j]
    S      <- decay S + sum_j kept[j] v[j]^T

Gates are unbounded below, so exp(-G) alone would overflow, and a difference of two large sums would lose the
digits of a small one. Every exponent is therefore a sum of the gates between two tokens: at most 0, and exact
to rounding. P is cut by halving: two tokens j < i lie in the two halves of exactly one block of 2 h tokens,
and with m the first token of its second half

    exp(G[i] - G[j]) = exp(gates m .. i) exp(gates j + 1 .. m - 1)

so that for each h = 1, 2, 4 .. C / 2 one product of matrices gives P[i, j] of all such pairs, and the sums of
gates are a product with a matrix of zeros and ones. Without a gate exp(G[i] - G[j]) is one number for a pair,
of the exponent i - j times a logarithm, and one product of matrices gives P. For 16-bit inputs P's products
have the operands that PRECISION names; read, kept, P and the operand S, not the state that is kept, are
rounded to 16 bits. Every sum is in float32.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from fastkernels.kernels.ragged import row_of_tile

# exp of it, and of all below, is 0. In place of -inf, which times 0 is no number; every dtype has it.
LOWEST = tl.constexpr(-60000.0)


@triton.jit
def _exp(x, FLUSHES: tl.constexpr):
    """exp; with FLUSHES 0 in place of 1e-38, by two instructions, not five: not in the interpreter."""
    return libdevice.fast_expf(x) if FLUSHES else tl.exp(x)


@triton.jit
def _exp_of_sums(taken, gate, PRECISION: tl.constexpr, FLUSHES: tl.constexpr):
    """exp of the sum of the gates [C, channels] that each row of `taken` [C, C] names."""
    return _exp(tl.dot(taken.to(gate.dtype), gate, input_precision=PRECISION), FLUSHES)


@triton.jit
def lost(head):
    """What a head forgets of its state at every token of retention, 2^(-5 - head): the bits of a float32."""
    return ((122 - head) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _log_kept(head):
    """log(1 - lost) by its series: exact to rounding, however little is lost."""
    x = lost(head)
    return -x * (1.0 + x * (1 / 2 + x * (1 / 3 + x * (1 / 4 + x * (1 / 5)))))


@triton.jit(do_not_specialize=["num_rows"])
def _within(query, key, gate, starts, read, kept, decay, weights, scale, num_rows,
            q_stride_t, q_stride_h, k_stride_t, k_stride_h, g_stride_t, g_stride_h,
            H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, DIMS: tl.constexpr,
            SLICE: tl.constexpr, PRECISION: tl.constexpr, FLUSHES: tl.constexpr):  # fmt: skip
    """P, read, kept and decay of one chunk and head, whole tiles: zeros where the row has no token."""
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
    held = first + i < query_len
    token = (row_start + first).to(tl.int64) + i
    q_at = query + token * q_stride_t + head * q_stride_h
    k_at = key + token * k_stride_t + head * k_stride_h
    block = tile.to(tl.int64) * H + head
    p = tl.zeros([C, C], tl.float32)
    log_kept, length = _log_kept(head), tl.minimum(query_len - first, C)
    # Pairs that the product over whole keys gives; with a gate the levels give the others.
    taken = j <= i if gate is None else j == i
    for begin in range(0, DIMS, SLICE):
        c = begin + tl.arange(0, SLICE)[None, :]
        mask = held & (c < K)
        q = tl.load(q_at + c, mask=mask, other=0.0)
        k = tl.load(k_at + c, mask=mask, other=0.0)
        if gate is None:
            upto, after = tl.exp(log_kept * (i + 1)), tl.exp(log_kept * (length - 1 - i))
            total = tl.full([SLICE], 0.0, tl.float32) + log_kept * length
        else:
            g_at = gate + token * g_stride_t + head * g_stride_h
            g = tl.load(g_at + c, mask=mask, other=0.0)
            g = tl.maximum(g, LOWEST, propagate_nan=tl.PropagateNan.ALL).to(q.dtype)
            upto = _exp_of_sums(j <= i, g, PRECISION, FLUSHES)
            after = _exp_of_sums(j > i, g, PRECISION, FLUSHES)
            total = tl.sum(g.to(tl.float32), axis=0)
        out = (block * C + i) * DIMS + c
        tl.store(read + out, (q * upto * scale).to(q.dtype))
        tl.store(kept + out, (k * after).to(q.dtype))
        tl.store(decay + block * DIMS + begin + tl.arange(0, SLICE), _exp(total, FLUSHES))

        p += tl.where(taken, tl.dot(q, tl.trans(k), input_precision=PRECISION), 0.0)
        for level in tl.static_range(LEVELS):
            half_i, half_j = i >> level, j >> level
            is_second = half_i % 2 == 1
            # In a second half the gates up to a token, in a first half those after it.
            x = _exp_of_sums((half_i == half_j) & ((j <= i) == is_second), g, PRECISION, FLUSHES)
            found = tl.dot(q * x, tl.trans(k * x), input_precision=PRECISION)
            p += tl.where(is_second & (half_i == half_j + 1), found, 0.0)
    if gate is None:
        p *= tl.exp(log_kept * (i - j))
    tl.store(weights + (block * C + i) * C + j, (p * scale).to(weights.dtype.element_ty))


@triton.jit
def _across(read, kept, decay, weights, value, state, rows, starts, out, v_stride_t, v_stride_h,
            H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DIMS: tl.constexpr,
            COLUMNS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
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
    v_at = value + row_start.to(tl.int64) * v_stride_t + head * v_stride_h + d[None, :]
    o_at = out + (row_start.to(tl.int64) * H + head) * V + d[None, :]
    first_tile = (row_start // C + b).to(tl.int64)
    for n in tl.range(0, tl.cdiv(query_len, C), num_stages=STAGES):
        block = (first_tile + n) * H + head
        token = n * C + t[:, None]
        mask = (token < query_len) & (d < V)[None, :]
        read_CK = tl.load(read + block * (C * DIMS) + (t[:, None] * DIMS + c[None, :]))
        kept_CK = tl.load(kept + block * (C * DIMS) + (t[:, None] * DIMS + c[None, :]))
        p = tl.load(weights + block * (C * C) + (t[:, None] * C + t[None, :]))
        decay_K = tl.load(decay + block * DIMS + c)
        v_VC = tl.trans(tl.load(v_at + token.to(tl.int64) * v_stride_t, mask=mask, other=0.0))

        o = tl.dot(s.to(read_CK.dtype), tl.trans(read_CK), input_precision=PRECISION)
        o = tl.dot(v_VC, tl.trans(p), o, input_precision=PRECISION)
        s = tl.dot(v_VC, kept_CK, s * decay_K[None, :], input_precision=PRECISION)
        tl.store(o_at + token.to(tl.int64) * (H * V), tl.trans(o).to(out.dtype.element_ty), mask=mask)
    tl.store(s_at, tl.trans(s), mask=in_state)
