"""cross_attention in Triton: a program for each tile of a row's queries and head, online over key tiles.

    s = scale log2(e) q k^T,  m = max_j s_j,  o = sum_j 2^(s_j - m) v_j / sum_j 2^(s_j - m)

Tiles are found on the device as in dense_attention; the keys of a row lie at its place in the pools.
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

# Prompts are a few tokens, and most rows decode one: the smallest tile that tl.dot takes.
QUERIES = 16
# Keys of a tile and pipeline stages by bytes of an element.
KEYS = {2: (64, 3), 4: (32, 2)}
LOG2_E = tl.constexpr(1.4426950408889634)


def unsupported(kernel: str, q_THK: Tensor, k_RSHK: Tensor, v_RSHK: Tensor, *_: object) -> str | None:
    if q_THK.stride(-1) != 1 or not (k_RSHK.is_contiguous() and v_RSHK.is_contiguous()):
        return "needs contiguous pools and a contiguous last dimension of the query"
    if (head_dim := q_THK.shape[-1]) > 256:
        return f"serves head dimensions up to 256, not {head_dim}"
    return checks.not_float32_compute(q_THK, k_RSHK, v_RSHK)


@triton.jit(do_not_specialize=["num_rows"])
def _attend(query, key, value, query_starts, rows, out, scale, num_rows, num_keys, q_stride_t, q_stride_h,
            H: tl.constexpr, K: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr, DIMS: tl.constexpr,
            STAGES: tl.constexpr):  # fmt: skip
    head, tile = tl.program_id(0), tl.program_id(1)
    row = row_of_tile(query_starts, num_rows, tile, M)
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    first_query = (tile - row_start // M - row) * M
    if first_query >= query_len:
        return

    i, j, d = first_query + tl.arange(0, M), tl.arange(0, TILE), tl.arange(0, DIMS)
    inside = (i < query_len)[:, None] & (d < K)[None, :]
    token = (row_start + i).to(tl.int64)
    q = tl.load(query + token[:, None] * q_stride_t + head * q_stride_h + d[None, :], mask=inside, other=0.0)
    pool = tl.load(rows + row).to(tl.int64) * num_keys * (H * K) + head * K

    to_log2 = scale * LOG2_E
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, DIMS], tl.float32)
    for start in tl.range(0, num_keys, TILE, num_stages=STAGES):
        here = start + j < num_keys
        held = here[:, None] & (d < K)[None, :]
        at = pool + (start + j)[:, None] * (H * K) + d[None, :]
        k = tl.load(key + at, mask=held, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * to_log2
        scores = tl.where(here[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(value + at, mask=held, other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top

    o = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (token[:, None] * H + head) * K + d[None, :], o, mask=inside)


def cross_attention(
    q_THK: Tensor,
    k_RSHK: Tensor,
    v_RSHK: Tensor,
    query_starts_B1: Tensor,
    rows_B: Tensor,
    scale: float,
    max_query_len: int,
) -> Tensor:
    num_tokens, num_heads, head_dim = q_THK.shape
    out = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    if num_tokens == 0:
        return out
    keys, stages = KEYS[q_THK.element_size()]
    _attend[(num_heads, num_tokens // QUERIES + len(rows_B))](
        q_THK, k_RSHK, v_RSHK, query_starts_B1, rows_B, out, scale, len(rows_B), k_RSHK.shape[1],
        *q_THK.stride()[:2],
        H=num_heads, K=head_dim, M=QUERIES, TILE=keys, DIMS=max(16, triton.next_power_of_2(head_dim)),
        STAGES=stages, num_warps=4,
    )  # fmt: skip
    return out
