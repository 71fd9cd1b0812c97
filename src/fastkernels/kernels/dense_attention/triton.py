"""dense_attention in Triton: a program for each tile of a row's queries and head.

    s = log2(e) (scale q k^T + bias),  m = max_j s_j,  o = sum_j 2^(s_j - m) v_j / sum_j 2^(s_j - m)

online over key tiles; a causal tile of queries stops at its own last key.

The tiles of packed rows are found on the device: row b starts at tile query_starts[b] // M + b, so
T // M + B programs suffice whatever the lengths are, and those that find no queries return.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.ragged import row_of_tile

# (queries of a tile M, keys of a tile, warps, pipeline stages) by bytes of an element and padded head
# dimension: those of prefill_attention.
SHAPES = {
    (2, 16): (128, 64, 4, 3),
    (2, 32): (128, 64, 4, 3),
    (2, 64): (128, 64, 4, 3),
    (2, 128): (128, 64, 8, 3),
    (2, 256): (64, 32, 4, 3),
    (4, 16): (64, 32, 4, 2),
    (4, 32): (64, 32, 4, 2),
    (4, 64): (32, 32, 4, 2),
    (4, 128): (32, 16, 8, 2),
    (4, 256): (16, 16, 8, 2),
}
LOG2_E = tl.constexpr(1.4426950408889634)


def unsupported(kernel: str, q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, *rest: object) -> str | None:
    tensors = [x for x in (q_THK, k_SHK, v_SHK, rest[-1]) if isinstance(x, Tensor)]
    if any(x.stride(-1) != 1 for x in tensors):
        return "needs a contiguous last dimension"
    if (head_dim := q_THK.shape[-1]) > 256:
        return f"serves head dimensions up to 256, not {head_dim}"
    return checks.not_float32_compute(*tensors)


@triton.jit(do_not_specialize=["num_rows"])
def _attend(query, key, value, query_starts, key_starts, bias, out, scale, num_rows,
            q_stride_t, q_stride_h, k_stride_s, k_stride_h, v_stride_s, v_stride_h, b_stride_h, b_stride_q,
            H: tl.constexpr, SHARING: tl.constexpr, K: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr,
            DIMS: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    # Heads vary fastest, so programs that run together read one row's keys.
    head, tile = tl.program_id(0), tl.program_id(1)
    row = row_of_tile(query_starts, num_rows, tile, M)
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    first_query = (tile - row_start // M - row) * M
    if first_query >= query_len:
        return

    first_key = tl.load(key_starts + row)
    key_len = tl.load(key_starts + row + 1) - first_key
    i, j, d = first_query + tl.arange(0, M), tl.arange(0, TILE), tl.arange(0, DIMS)
    inside = (i < query_len)[:, None] & (d < K)[None, :]
    token = (row_start + i).to(tl.int64)
    q = tl.load(query + token[:, None] * q_stride_t + head * q_stride_h + d[None, :], mask=inside, other=0.0)
    k_head = key + first_key.to(tl.int64) * k_stride_s + head // SHARING * k_stride_h
    v_head = value + first_key.to(tl.int64) * v_stride_s + head // SHARING * v_stride_h

    b_head = bias + head.to(tl.int64) * b_stride_h
    # Queries of a causal tile see nothing behind its last one.
    end = tl.minimum(key_len, first_query + M) if CAUSAL else key_len

    to_log2 = scale * LOG2_E
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, DIMS], tl.float32)
    for start in tl.range(0, end, TILE, num_stages=STAGES):
        here = start + j < key_len
        held = here[:, None] & (d < K)[None, :]
        at = (start + j).to(tl.int64)[:, None]
        k = tl.load(k_head + at * k_stride_s + d[None, :], mask=held, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * to_log2
        if BIAS:
            there = (i < query_len)[:, None] & here[None, :]
            at_bias = i.to(tl.int64)[:, None] * b_stride_q + (start + j)[None, :]
            scores += tl.load(b_head + at_bias, mask=there, other=0.0).to(tl.float32) * LOG2_E
        seen = here[None, :]
        if CAUSAL:
            seen = seen & ((start + j)[None, :] <= i[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(v_head + at * v_stride_s + d[None, :], mask=held, other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top

    o = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (token[:, None] * H + head) * K + d[None, :], o, mask=inside)


def dense_attention(
    q_THK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    query_starts_B1: Tensor,
    key_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
    max_key_len: int,
    causal: bool,
    bias_HQS: Tensor | None,
) -> Tensor:
    num_tokens, num_heads, head_dim = q_THK.shape
    out = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    if num_tokens == 0:
        return out
    rows = len(query_starts_B1) - 1
    dims = max(16, triton.next_power_of_2(head_dim))
    most, keys, warps, stages = SHAPES[q_THK.element_size(), dims]
    queries = min(most, max(16, triton.next_power_of_2(max_query_len)))
    # Without a bias its place is taken by a tensor that is never read.
    bias = q_THK if bias_HQS is None else bias_HQS
    _attend[(num_heads, num_tokens // queries + rows)](
        q_THK, k_SHK, v_SHK, query_starts_B1, key_starts_B1, bias, out, scale, rows,
        *q_THK.stride()[:2], *k_SHK.stride()[:2], *v_SHK.stride()[:2], *bias.stride()[:2],
        H=num_heads, SHARING=num_heads // k_SHK.shape[1], K=head_dim, M=queries, TILE=keys, DIMS=dims,
        STAGES=stages, CAUSAL=causal, BIAS=bias_HQS is not None,
        num_warps=warps if queries == most else 4,
    )  # fmt: skip
    return out
