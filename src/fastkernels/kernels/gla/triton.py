"""chunk_gla and recurrent_gla in Triton; states stay in registers from a row's first token to its last.

A chunk of C tokens, with G[i] the sum of its gates up to and including token i:

    P[i, j] = scale sum_c q[i, c] k[j, c] exp(G[i, c] - G[j, c])         j <= i
    o[i]    = scale (q[i] exp(G[i])) S + sum_j P[i, j] v[j]
    S      <- exp(G[C-1]) S + sum_j (k[j] exp(G[C-1] - G[j])) v[j]^T

Gates are unbounded below, so exp(-G) alone would overflow, and a difference of two large sums would lose the
digits of a small one. Every exponent is therefore a sum of the gates between two tokens: at most 0, and exact
to rounding. `_within` computes P of all chunks at once, `_across` walks the chunks of a row.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import power_of_two
from fastkernels.kernels.ragged import row_of_tile

CHUNK = 16  # the smallest tile that tensor cores take
WIDEST_KEY = 256
# Value columns of a program, which holds that part of a head's state in registers.
CHUNK_COLUMNS, STEP_COLUMNS = 64, 32
STATE_ELEMENTS_OF_A_WARP = 2048


def unsupported(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, state: Tensor, *_: object
) -> str | None:
    if reason := checks.not_float32_compute(q, k, v, gate):
        return reason
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    if any(x.stride(-1) != 1 for x in (q, k, v, gate)) or not state.is_contiguous():
        return "needs a contiguous last dimension, and contiguous states"
    if q.shape[-1] > WIDEST_KEY:
        return f"serves key dimensions up to {WIDEST_KEY}, not {q.shape[-1]}"
    return None


@triton.jit(do_not_specialize=["num_rows"])
def _within(query, key, gate, starts, weights, scale, num_rows,
            q_stride_t, q_stride_h, k_stride_t, k_stride_h, g_stride_t, g_stride_h,
            H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, DIMS: tl.constexpr):  # fmt: skip
    """P of one chunk and head, into weights [T, H, C]; chunks count from a row's first token."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = row_of_tile(starts, num_rows, tile, C)
    origin = tl.load(starts)
    row_start = tl.load(starts + row) - origin
    query_len = tl.load(starts + row + 1) - origin - row_start
    first = (tile - row_start // C - row) * C
    if first >= query_len:
        return

    i, j_all, c = tl.arange(0, C), tl.arange(0, C), tl.arange(0, DIMS)
    token = (row_start + first).to(tl.int64)
    held = first + i < query_len
    q_at = query + (token + i)[:, None] * q_stride_t + head * q_stride_h + c[None, :]
    q = tl.load(q_at, mask=held[:, None] & (c < K)[None, :], other=0.0).to(tl.float32)
    p = tl.zeros([C, C], tl.float32)
    # From the last token of the chunk to the first: `between` is the sum of the gates j + 1 .. i.
    between = tl.zeros([C, DIMS], tl.float32)
    g_after = tl.zeros([DIMS], tl.float32)
    for step in range(C):
        j = C - 1 - step
        mask = (c < K) & (first + j < query_len)
        k_j = tl.load(key + (token + j) * k_stride_t + head * k_stride_h + c, mask=mask, other=0.0)
        g_j = tl.load(gate + (token + j) * g_stride_t + head * g_stride_h + c, mask=mask, other=0.0)
        between = tl.where((i > j)[:, None], between + g_after[None, :], 0.0)
        p_j = tl.sum(q * tl.exp(between) * k_j.to(tl.float32)[None, :], axis=1)
        p = tl.where((j_all == j)[None, :] & (i >= j)[:, None], p_j[:, None], p)
        g_after = g_j.to(tl.float32)
    out = weights + ((token + i)[:, None] * H + head) * C + j_all[None, :]
    tl.store(out, p * scale, mask=held[:, None])


@triton.jit
def _across(query, key, value, gate, weights, state, rows, starts, out, scale,
            q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, g_stride_t, g_stride_h,
            H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DIMS: tl.constexpr,
            COLUMNS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """All chunks of one row, for one head and some columns of the value."""
    head, b = tl.program_id(1), tl.program_id(2)
    c, d = tl.arange(0, DIMS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, C)
    in_key, in_value = (c < K)[None, :], (d < V)[None, :]
    row_start = (tl.load(starts + b) - tl.load(starts)).to(tl.int64)
    query_len = tl.load(starts + b + 1) - tl.load(starts + b)
    s_at = state + ((tl.load(rows + b).to(tl.int64) * H + head) * K + c)[:, None] * V + d[None, :]
    in_state = (c < K)[:, None] & in_value
    s = tl.load(s_at, mask=in_state, other=0.0)
    for first in range(0, query_len, C):
        token = row_start + first + i
        held = (first + i < query_len)[:, None]
        q = tl.load(query + token[:, None] * q_stride_t + head * q_stride_h + c[None, :],
                    mask=held & in_key, other=0.0).to(tl.float32)  # fmt: skip
        k = tl.load(key + token[:, None] * k_stride_t + head * k_stride_h + c[None, :],
                    mask=held & in_key, other=0.0).to(tl.float32)  # fmt: skip
        v = tl.load(value + token[:, None] * v_stride_t + head * v_stride_h + d[None, :],
                    mask=held & in_value, other=0.0).to(tl.float32)  # fmt: skip
        g_at = gate + token[:, None] * g_stride_t + head * g_stride_h + c[None, :]
        g = tl.load(g_at, mask=held & in_key, other=0.0).to(tl.float32)
        # The gate of the next token of the chunk: what follows a token is a sum without it.
        has_next = ((i + 1 < C) & (first + i + 1 < query_len))[:, None]
        g_next = tl.load(g_at + g_stride_t, mask=has_next & in_key, other=0.0).to(tl.float32)
        p = tl.load(weights + (token[:, None] * H + head) * C + i[None, :], mask=held, other=0.0)

        read = q * tl.exp(tl.cumsum(g, axis=0)) * scale
        o = tl.dot(read, s, input_precision=PRECISION)
        o = tl.dot(p, v, o, input_precision=PRECISION)
        kept = k * tl.exp(tl.cumsum(g_next, axis=0, reverse=True))
        s = s * tl.exp(tl.sum(g, axis=0))[:, None]
        s = tl.dot(tl.trans(kept), v, s, input_precision=PRECISION)
        o_at = out + (token[:, None] * H + head) * V + d[None, :]
        tl.store(o_at, o.to(out.dtype.element_ty), mask=held & in_value)
    tl.store(s_at, s, mask=in_state)


@triton.jit
def _step(query, key, value, gate, state, rows, out, scale,
          q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, g_stride_t, g_stride_h,
          H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, DIMS: tl.constexpr,
          COLUMNS: tl.constexpr):  # fmt: skip
    """One token of one row, for one head and some columns of the value."""
    head, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c, d = tl.arange(0, DIMS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    in_key, in_value = c < K, d < V
    s_at = state + ((tl.load(rows + b).to(tl.int64) * H + head) * K + c)[:, None] * V + d[None, :]
    in_state = in_key[:, None] & in_value[None, :]
    s = tl.load(s_at, mask=in_state, other=0.0)
    q = tl.load(query + b * q_stride_t + head * q_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    k = tl.load(key + b * k_stride_t + head * k_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    g = tl.load(gate + b * g_stride_t + head * g_stride_h + c, mask=in_key, other=0.0).to(tl.float32)
    v = tl.load(value + b * v_stride_t + head * v_stride_h + d, mask=in_value, other=0.0).to(tl.float32)
    s = s * tl.exp(g)[:, None] + k[:, None] * v[None, :]
    tl.store(s_at, s, mask=in_state)
    o = tl.sum(s * (q * scale)[:, None], axis=0)
    tl.store(out + (b * H + head) * V + d, o.to(out.dtype.element_ty), mask=in_value)


def chunk_gla(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    gate_THK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
) -> Tensor:
    num_tokens, num_heads, key_dim = q_THK.shape
    value_dim, num_rows = v_THV.shape[-1], rows_B.shape[0]
    o_THV = q_THK.new_empty(v_THV.shape)
    if num_tokens == 0:
        return o_THV
    dims, columns = _tile(key_dim, value_dim, CHUNK_COLUMNS)
    q, k, v, g = (x.stride()[:2] for x in (q_THK, k_THK, v_THV, gate_THK))
    weights_THC = torch.empty((num_tokens, num_heads, CHUNK), dtype=torch.float32, device=q_THK.device)
    _within[(num_tokens // CHUNK + num_rows, num_heads)](
        q_THK, k_THK, gate_THK, query_starts_B1, weights_THC, scale, num_rows, *q, *k, *g,
        H=num_heads, K=key_dim, C=CHUNK, DIMS=dims,
    )  # fmt: skip
    _across[(triton.cdiv(value_dim, columns), num_heads, num_rows)](
        q_THK, k_THK, v_THV, gate_THK, weights_THC, state_RHKV, rows_B, query_starts_B1, o_THV, scale,
        *q, *k, *v, *g, H=num_heads, K=key_dim, V=value_dim, C=CHUNK, DIMS=dims, COLUMNS=columns,
        PRECISION="ieee" if q_THK.dtype == torch.float32 else "tf32", num_warps=_warps(dims * columns),
    )  # fmt: skip
    return o_THV


def recurrent_gla(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    gate_BHK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
    scale: float,
) -> Tensor:
    num_rows, num_heads, key_dim = q_BHK.shape
    value_dim = v_BHV.shape[-1]
    o_BHV = q_BHK.new_empty(v_BHV.shape)
    if num_rows == 0:
        return o_BHV
    dims, columns = _tile(key_dim, value_dim, STEP_COLUMNS)
    strides = [s for x in (q_BHK, k_BHK, v_BHV, gate_BHK) for s in x.stride()[:2]]
    _step[(triton.cdiv(value_dim, columns), num_heads, num_rows)](
        q_BHK, k_BHK, v_BHV, gate_BHK, state_RHKV, rows_B, o_BHV, scale, *strides,
        H=num_heads, K=key_dim, V=value_dim, DIMS=dims, COLUMNS=columns, num_warps=_warps(dims * columns),
    )  # fmt: skip
    return o_BHV


def _tile(key_dim: int, value_dim: int, most_columns: int) -> tuple[int, int]:
    """Padded key dimension, and value columns of a program: at least what a tensor core takes."""
    return max(16, power_of_two(key_dim)), max(16, min(most_columns, power_of_two(value_dim)))


def _warps(state_elements: int) -> int:
    return max(1, min(8, state_elements // STATE_ELEMENTS_OF_A_WARP))
