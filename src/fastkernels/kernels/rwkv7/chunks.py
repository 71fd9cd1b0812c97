"""The two kernels of chunk_rwkv7: all chunks of a step at once, then the chunks of each row in sequence.

A chunk of C tokens, with G[i] the sum of w up to and including token i, and S the state before it:

    alpha[i] = -kk[i] exp(G[i] - w[i])     beta[i] = kk[i] a[i] exp(-G[i])     k~[i] = k[i] exp(-G[i])
    r~[i]    = r[i] exp(G[i])
    u        = T (A v + alpha S)       T = (I - B)^-1,  A = tril(alpha k~^T, -1),  B = tril(alpha beta^T, -1)
    o        = P v + Q u + r~ S        P = tril(r~ k~^T),  Q = tril(r~ beta^T)
    S       <- diag(exp G[C-1]) (S + k~^T v + beta^T u)

u is linear in S, so a chunk is one affine step of the state, and all that does not wait for S comes first:

    o = out + read S                   read = r~ + Q T alpha,  out = P v + Q T A v
    S <- last S + move S + add         move = last beta^T T alpha
    last = exp G[C-1]                  add  = last (k~^T v + beta^T T A v)

w is at least -0.61, so exp(-G) of 64 tokens is at most 1e17. T comes by halving: of two neighbouring halves
with their inverses T1 and T2, and B21 between them, T is T1 and T2 with T2 B21 T1 below. Powers of B, which
would be fewer products, cancel: with one key for all tokens they reach 1e18, and T stays within 1. Operands
are float32, as PRECISION multiplies them. move, read and out are kept in the dtype of r, in which the operand
S is rounded, not the state that is kept.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from fastkernels.kernels.ragged import row_of_tile


@triton.jit
def _of_chunk(x, token, head, c, stride_t, stride_h, mask):
    """[C, channels] in float32, zeros behind a row's end."""
    at = x + token * stride_t + head * stride_h + c[None, :]
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _inverse(below, LEVELS: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr):
    """(I - B)^-1 of what lies below the diagonal."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    inverse = tl.where(i == j, 1.0, 0.0)
    for level in tl.static_range(LEVELS):
        is_between = ((i >> level) % 2 == 1) & ((i >> level) == (j >> level) + 1)
        between = tl.where(is_between, below, 0.0)
        if level > 0:
            between = tl.dot(inverse, between, input_precision=PRECISION)
            between = tl.dot(between, inverse, input_precision=PRECISION)
        inverse += between
    return inverse


@triton.jit(do_not_specialize=["num_rows"])
def _within(receptance, log_decay, key, value, removal, rate, starts, read, out, move, add, last, num_rows,
            r_stride_t, r_stride_h, w_stride_t, w_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h,
            kk_stride_t, kk_stride_h, a_stride_t, a_stride_h,
            H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
            DIMS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """read, out, move, add and last of one chunk and head, whole tiles."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = row_of_tile(starts, num_rows, tile, C)
    origin = tl.load(starts)
    row_start = tl.load(starts + row) - origin
    query_len = tl.load(starts + row + 1) - origin - row_start
    first = (tile - row_start // C - row) * C  # chunks count from a row's first token
    if first >= query_len:
        return

    t, c, d = tl.arange(0, C), tl.arange(0, DIMS), tl.arange(0, WIDTH)
    i, j = t[:, None], t[None, :]
    held = first + i < query_len
    token = (row_start + first).to(tl.int64) + i
    in_key, in_value = held & (c < K)[None, :], held & (d < V)[None, :]
    block = tile.to(tl.int64) * H + head

    w = _of_chunk(log_decay, token, head, c, w_stride_t, w_stride_h, in_key)
    g = tl.dot(tl.where(j <= i, 1.0, 0.0), w, input_precision=PRECISION)
    kk = _of_chunk(removal, token, head, c, kk_stride_t, kk_stride_h, in_key)
    a = _of_chunk(rate, token, head, c, a_stride_t, a_stride_h, in_key)
    alpha = -kk * tl.exp(g - w)
    beta = tl.trans(kk * a * tl.exp(-g))
    pairs = tl.where(j < i, tl.dot(alpha, beta, input_precision=PRECISION), 0.0)
    inverse = _inverse(pairs, LEVELS, C, PRECISION)

    k = tl.trans(_of_chunk(key, token, head, c, k_stride_t, k_stride_h, in_key) * tl.exp(-g))
    v = _of_chunk(value, token, head, d, v_stride_t, v_stride_h, in_value)
    pairs = tl.where(j < i, tl.dot(alpha, k, input_precision=PRECISION), 0.0)
    alpha = tl.dot(inverse, alpha, input_precision=PRECISION)
    u = tl.dot(pairs, v, input_precision=PRECISION)
    u = tl.dot(inverse, u, input_precision=PRECISION)

    r = _of_chunk(receptance, token, head, c, r_stride_t, r_stride_h, in_key) * tl.exp(g)
    of_values = tl.where(j <= i, tl.dot(r, k, input_precision=PRECISION), 0.0)
    of_removals = tl.where(j <= i, tl.dot(r, beta, input_precision=PRECISION), 0.0)
    reads = tl.dot(of_removals, alpha, r, input_precision=PRECISION)
    tl.store(read + (block * C + i) * DIMS + c[None, :], reads.to(read.dtype.element_ty))
    outs = tl.dot(of_values, v, input_precision=PRECISION)
    outs = tl.dot(of_removals, u, outs, input_precision=PRECISION)
    tl.store(out + (block * C + i) * WIDTH + d[None, :], outs.to(out.dtype.element_ty))

    decay = tl.exp(tl.sum(w, axis=0))
    tl.store(last + block * DIMS + c, decay)
    beta, k = beta * decay[:, None], k * decay[:, None]
    moves = tl.dot(beta, alpha, input_precision=PRECISION)
    tl.store(move + (block * DIMS + c[:, None]) * DIMS + c[None, :], moves.to(move.dtype.element_ty))
    adds = tl.dot(k, v, input_precision=PRECISION)
    adds = tl.dot(beta, u, adds, input_precision=PRECISION)
    tl.store(add + (block * DIMS + c[:, None]) * WIDTH + d[None, :], adds)


@triton.jit
def _across(read, out, move, add, last, state, rows, starts, y,
            H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DIMS: tl.constexpr,
            WIDTH: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    """All chunks of one row, for one head and some columns of the value."""
    head, b = tl.program_id(1), tl.program_id(2)
    t, c, d = tl.arange(0, C), tl.arange(0, DIMS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row_start = tl.load(starts + b) - tl.load(starts)
    query_len = tl.load(starts + b + 1) - tl.load(starts + b)
    s_at = state + ((tl.load(rows + b).to(tl.int64) * H + head) * K + c)[:, None] * V + d[None, :]
    in_state = (c < K)[:, None] & (d < V)[None, :]
    s = tl.load(s_at, mask=in_state, other=0.0)
    y_at = y + (row_start.to(tl.int64) * H + head) * V + d[None, :]
    first_tile = (row_start // C + b).to(tl.int64)
    for n in tl.range(0, tl.cdiv(query_len, C), num_stages=STAGES):
        block = (first_tile + n) * H + head
        token = n * C + t[:, None]
        read_CK = tl.load(read + (block * C + t[:, None]) * DIMS + c[None, :])
        move_KK = tl.load(move + (block * DIMS + c[:, None]) * DIMS + c[None, :])
        out_CV = tl.load(out + (block * C + t[:, None]) * WIDTH + d[None, :]).to(tl.float32)
        add_KV = tl.load(add + (block * DIMS + c[:, None]) * WIDTH + d[None, :])
        last_K = tl.load(last + block * DIMS + c)

        operand = s.to(move_KK.dtype)
        o = tl.dot(read_CK, operand, out_CV, input_precision=PRECISION)
        s = tl.dot(move_KK, operand, s * last_K[:, None] + add_KV, input_precision=PRECISION)
        mask = (token < query_len) & (d < V)[None, :]
        tl.store(y_at + token.to(tl.int64) * (H * V), o.to(y.dtype.element_ty), mask=mask)
    tl.store(s_at, s, mask=in_state)
