"""sliding_attention and its gradient in Triton: tiles of queries, and for keys and values tiles of keys.

    p = 2^(log2(e) (s - lse))                      lse and o by a forward, p by each of two passes
    queries     dq = scale sum_j p (do v^T - delta) k           over the keys of a tile's windows
    keys        dv = sum_i p do,  dk = scale sum_i p (do v^T - delta) q      over the queries that see a tile

delta[i] = do[i] . o[i]; each pass makes it from the rows that it has loaded. T queries, the last of S keys ·
H heads · K head dim · W keys of a window.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import ceil_div, power_of_two

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# (queries, keys, warps) of a tile by bytes of an element and padded head dimension, forward and backward.
# Estimated from registers: no GPU has timed them.
FORWARD = {(2, 64): (128, 64, 4), (2, 128): (128, 64, 8), (4, 64): (32, 32, 4), (4, 128): (32, 16, 8)}
BACKWARD = {(2, 64): (64, 64, 4), (2, 128): (64, 32, 8), (4, 64): (32, 16, 4), (4, 128): (16, 16, 8)}
STAGES = 2


def unsupported(kernel: str, *args: Tensor | float) -> str | None:
    tensors = [x for x in args if isinstance(x, Tensor)]
    if any(x.stride(-1) != 1 for x in tensors):
        return "needs a contiguous last dimension"
    if (head_dim := tensors[0].shape[-1]) > 128:
        return f"serves head dimensions up to 128, not {head_dim}"
    if kernel == "sliding_attention_grad" and not tensors[0].is_contiguous():
        return "needs a contiguous gradient"
    return checks.not_float32_compute(*tensors)


@triton.jit
def _rows(base, row, stride, mask, d, K: tl.constexpr):
    """[rows, DIMS] of one head; zeros outside."""
    at = row.to(tl.int64)[:, None] * stride + d[None, :]
    return tl.load(base + at, mask=mask[:, None] & (d < K)[None, :], other=0.0)


@triton.jit
def _attend(query, key, value, out, logs, scale, T, S, window,
            q_stride_t, q_stride_h, k_stride_s, k_stride_h, v_stride_s, v_stride_h,
            H: tl.constexpr, K: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr, DIMS: tl.constexpr,
            STAGES: tl.constexpr):  # fmt: skip
    head = tl.program_id(0)
    i, j, d = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, TILE), tl.arange(0, DIMS)
    place = S - T + i
    q = _rows(query + head * q_stride_h, i, q_stride_t, i < T, d, K)
    k_head, v_head = key + head * k_stride_h, value + head * v_stride_h
    first_place = S - T + tl.program_id(1) * M
    begin = tl.maximum(0, first_place - window + 1) // TILE * TILE
    end = tl.minimum(S, first_place + M)

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, DIMS], tl.float32)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        at = start + j
        k = _rows(k_head, at, k_stride_s, at < S, d, K)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
        seen = (at[None, :] <= place[:, None]) & (at[None, :] > place[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A tile may end before a query's window begins: -inf - -inf must not make NaN.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(top - shift)
        total = total * shrink + tl.sum(weights, 1)
        v = _rows(v_head, at, v_stride_s, at < S, d, K)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top

    # Rows behind the last query have seen keys too or nothing; they are not stored.
    total = tl.where(total > 0.0, total, 1.0)
    o_at = out + (i.to(tl.int64)[:, None] * H + head) * K + d[None, :]
    o = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(o_at, o, mask=(i < T)[:, None] & (d < K)[None, :])
    tl.store(logs + i.to(tl.int64) * H + head, top * LN_2 + tl.log(total), mask=i < T)


@triton.jit
def _of_queries(grad, query, key, value, out, logs, dq, scale, T, S, window,
                q_stride_t, q_stride_h, k_stride_s, k_stride_h, v_stride_s, v_stride_h,
                H: tl.constexpr, K: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr, DIMS: tl.constexpr,
                STAGES: tl.constexpr):  # fmt: skip
    head = tl.program_id(0)
    i, j, d = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, TILE), tl.arange(0, DIMS)
    place, is_query = S - T + i, i < T
    q = _rows(query + head * q_stride_h, i, q_stride_t, is_query, d, K)
    do = _rows(grad + head * K, i, H * K, is_query, d, K)
    o = _rows(out + head * K, i, H * K, is_query, d, K)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    lse = tl.load(logs + i.to(tl.int64) * H + head, mask=is_query, other=0.0)
    k_head, v_head = key + head * k_stride_h, value + head * v_stride_h
    first_place = S - T + tl.program_id(1) * M
    begin = tl.maximum(0, first_place - window + 1) // TILE * TILE
    end = tl.minimum(S, first_place + M)

    acc = tl.zeros([M, DIMS], tl.float32)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        at = start + j
        k = _rows(k_head, at, k_stride_s, at < S, d, K)
        v = _rows(v_head, at, v_stride_s, at < S, d, K)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale - lse[:, None]
        seen = (at[None, :] <= place[:, None]) & (at[None, :] > place[:, None] - window)
        weights = tl.exp2(tl.where(seen, scores * LOG2_E, float("-inf")))
        slopes = weights * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        acc = tl.dot(slopes.to(k.dtype), k, acc, input_precision="ieee")

    at_dq = dq + (i.to(tl.int64)[:, None] * H + head) * K + d[None, :]
    tl.store(at_dq, (acc * scale).to(dq.dtype.element_ty), mask=is_query[:, None] & (d < K)[None, :])


@triton.jit
def _of_keys(grad, query, key, value, out, logs, dk, dv, scale, T, S, window,
             q_stride_t, q_stride_h, k_stride_s, k_stride_h, v_stride_s, v_stride_h,
             H: tl.constexpr, K: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr, DIMS: tl.constexpr,
             STAGES: tl.constexpr):  # fmt: skip
    """Keys and queries count from the first query: key n is seen by queries n .. n + W - 1."""
    head = tl.program_id(0)
    n, m, d = tl.program_id(1) * TILE + tl.arange(0, TILE), tl.arange(0, M), tl.arange(0, DIMS)
    is_key = n < T
    k = _rows(key + head * k_stride_h, S - T + n, k_stride_s, is_key, d, K)
    v = _rows(value + head * v_stride_h, S - T + n, v_stride_s, is_key, d, K)
    begin = tl.program_id(1) * TILE // M * M
    end = tl.minimum(T, tl.program_id(1) * TILE + TILE + window - 1)

    acc_k = tl.zeros([TILE, DIMS], tl.float32)
    acc_v = tl.zeros([TILE, DIMS], tl.float32)
    for start in tl.range(begin, end, M, num_stages=STAGES):
        i = start + m
        q = _rows(query + head * q_stride_h, i, q_stride_t, i < T, d, K)
        do = _rows(grad + head * K, i, H * K, i < T, d, K)
        o = _rows(out + head * K, i, H * K, i < T, d, K)
        delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
        lse = tl.load(logs + i.to(tl.int64) * H + head, mask=i < T, other=0.0)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee") * scale - lse[None, :]
        seen = (n[:, None] <= i[None, :]) & (n[:, None] > i[None, :] - window) & (i < T)[None, :]
        weights = tl.exp2(tl.where(seen, scores * LOG2_E, float("-inf")))
        acc_v = tl.dot(weights.to(do.dtype), do, acc_v, input_precision="ieee")
        slopes = weights * (tl.dot(v, tl.trans(do), input_precision="ieee") - delta[None, :])
        acc_k = tl.dot(slopes.to(q.dtype), q, acc_k, input_precision="ieee")

    at = (n.to(tl.int64)[:, None] * H + head) * K + d[None, :]
    mask = is_key[:, None] & (d < K)[None, :]
    tl.store(dk + at, (acc_k * scale).to(dk.dtype.element_ty), mask=mask)
    tl.store(dv + at, acc_v.to(dv.dtype.element_ty), mask=mask)


def sliding_attention(q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, scale: float, window: int) -> Tensor:
    return _attended(q_THK, k_SHK, v_SHK, scale, window, q_THK.dtype)[0]


def sliding_attention_grad(
    do_THK: Tensor, q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, scale: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, heads, size = q_THK.shape
    dq_THK, dk_THK, dv_THK = (q_THK.new_empty(q_THK.shape) for _ in range(3))
    if dq_THK.numel():
        o_THK, lse_TH = _attended(q_THK, k_SHK, v_SHK, scale, window, torch.float32)
        dims, queries, keys, warps = _tile(BACKWARD, q_THK)
        given = (do_THK, q_THK, k_SHK, v_SHK, o_THK, lse_TH)
        sizes = (scale, tokens, len(k_SHK), window, *_strides(q_THK, k_SHK, v_SHK))
        options = {"H": heads, "K": size, "M": queries, "TILE": keys, "DIMS": dims, "STAGES": STAGES}
        _of_queries[(heads, ceil_div(tokens, queries))](*given, dq_THK, *sizes, **options, num_warps=warps)
        _of_keys[(heads, ceil_div(tokens, keys))](*given, dk_THK, dv_THK, *sizes, **options, num_warps=warps)
    return dq_THK, dk_THK, dv_THK


def _attended(
    q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, scale: float, window: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """o in this dtype, and the logarithms of its sums, float32 [T, H]."""
    tokens, heads, size = q_THK.shape
    o_THK = q_THK.new_empty(q_THK.shape, dtype=dtype)
    lse_TH = q_THK.new_empty((tokens, heads), dtype=torch.float32)
    if o_THK.numel():
        dims, queries, keys, warps = _tile(FORWARD, q_THK)
        _attend[(heads, ceil_div(tokens, queries))](
            q_THK, k_SHK, v_SHK, o_THK, lse_TH, scale, tokens, len(k_SHK), window,
            *_strides(q_THK, k_SHK, v_SHK), H=heads, K=size, M=queries, TILE=keys, DIMS=dims, STAGES=STAGES,
            num_warps=warps,
        )  # fmt: skip
    return o_THK, lse_TH


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for x in tensors for stride in x.stride()[:2])


def _tile(shapes: dict[tuple[int, int], tuple[int, int, int]], q_THK: Tensor) -> tuple[int, int, int, int]:
    """Padded head dimension, queries, keys, warps."""
    dims = max(16, power_of_two(q_THK.shape[-1]))
    return dims, *shapes[q_THK.element_size(), max(64, dims)]
