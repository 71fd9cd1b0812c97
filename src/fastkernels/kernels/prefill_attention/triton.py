"""prefill_attention in Triton: a program for each tile of a row's queries and head, K and V in their pages.

    s = scale log2(e) q k^T,  m = max_j s_j,  o = sum_j 2^(s_j - m) v_j / sum_j 2^(s_j - m)

online over key tiles; with a sink from m = its logit and a sum of 1 on.

The tiles of a varlen batch are found on the device: row b starts at tile query_starts[b] // M + b, so
T // M + B programs suffice whatever the lengths are, and those that find no queries return. Keys outside all
queries' windows are never visited; only tiles that the diagonal or the window's edge crosses are masked.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.ragged import row_of_tile

# (queries of a tile M, keys of a tile, warps, pipeline stages) by bytes of an element and padded head
# dimension.
SHAPES = {
    (2, 16): (128, 64, 4, 3),
    (2, 32): (128, 64, 4, 3),
    (2, 64): (128, 64, 4, 3),
    (2, 128): (128, 64, 8, 3),
    (2, 256): (64, 32, 4, 3),
    (2, 512): (64, 32, 8, 2),
    (4, 16): (64, 32, 4, 2),
    (4, 32): (64, 32, 4, 2),
    (4, 64): (32, 32, 4, 2),
    (4, 128): (32, 16, 8, 2),
    (4, 256): (16, 16, 8, 2),
    (4, 512): (16, 16, 8, 2),
}
LOG2_E = tl.constexpr(1.4426950408889634)


def unsupported(kernel: str, q_THK: Tensor, k_cache: Tensor, v_cache: Tensor, *_: object) -> str | None:
    return limits.triton(q_THK, k_cache, v_cache)


@triton.jit
def _walk(acc, top, total, q, position, k_head, v_head, table, begin, end, first, seq_len, to_log2,
          k_stride_n, k_stride_p, v_stride_n, v_stride_p,
          K: tl.constexpr, P: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr, TILE: tl.constexpr,
          DIMS: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """Attend to keys begin .. end - 1, `begin` a multiple of TILE; unmasked, all queries see all of them."""
    j, d = tl.arange(0, TILE), tl.arange(0, DIMS)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        key = start + j
        if MASKED:
            held = (key >= first) & (key < seq_len)
            block = tl.load(table + key // P, mask=held, other=0).to(tl.int64)
            inside = held[:, None] & (d < K)[None, :]
        else:
            block = tl.load(table + key // P).to(tl.int64)
            inside = (d < K)[None, :]
        k_rows = k_head + (block * k_stride_n + (key % P) * k_stride_p)
        v_rows = v_head + (block * v_stride_n + (key % P) * v_stride_p)
        if MASKED or K < DIMS:
            k = tl.load(k_rows[:, None] + d[None, :], mask=inside, other=0.0)
        else:
            k = tl.load(k_rows[:, None] + d[None, :])
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:
            seen = key[None, :] <= position[:, None]
            if WINDOW > 0:
                seen &= key[None, :] > position[:, None] - WINDOW
            scores = tl.where(seen, scores * to_log2, float("-inf"))
            # A query may see nothing of a tile that others of its tile see: keep its top finite.
            new_top = tl.maximum(tl.maximum(top, tl.max(scores, 1)), -1e30)
            weights = tl.exp2(scores - new_top[:, None])
        else:
            new_top = tl.maximum(top, tl.max(scores, 1) * to_log2)
            weights = tl.exp2(scores * to_log2 - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        if MASKED or K < DIMS:
            v = tl.load(v_rows[:, None] + d[None, :], mask=inside, other=0.0)
        else:
            v = tl.load(v_rows[:, None] + d[None, :])
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top
    return acc, top, total


@triton.jit(do_not_specialize=["num_rows", "table_stride_b"])
def _attend(query, k_cache, v_cache, query_starts, seq_lens, block_tables, out, sinks, scale, num_rows,
            q_stride_t, q_stride_h, k_stride_n, k_stride_p, k_stride_j, v_stride_n, v_stride_p, v_stride_j,
            table_stride_b,
            H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, P: tl.constexpr, WINDOW: tl.constexpr,
            M: tl.constexpr, TILE: tl.constexpr, DIMS: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    # Heads vary fastest, so those that share keys run together; late tiles see the most keys and start first.
    head, tile = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    row = row_of_tile(query_starts, num_rows, tile, M)
    origin = tl.load(query_starts)
    row_start = tl.load(query_starts + row) - origin
    query_len = tl.load(query_starts + row + 1) - origin - row_start
    first_query = (tile - row_start // M - row) * M
    if first_query >= query_len:
        return

    seq_len = tl.load(seq_lens + row)
    i, d = first_query + tl.arange(0, M), tl.arange(0, DIMS)
    inside = (i < query_len)[:, None] & (d < K)[None, :]
    token = (row_start + i).to(tl.int64)
    q = tl.load(query + token[:, None] * q_stride_t + head * q_stride_h + d[None, :], mask=inside, other=0.0)
    first_position = seq_len - query_len + first_query
    position = seq_len - query_len + i
    last_position = tl.minimum(first_position + M, seq_len) - 1

    # Keys [begin, edge) are cut by the window, [edge, diagonal) seen by every query, [diagonal, end) cut by
    # causality.
    end = last_position + 1
    diagonal = (first_position + 1) // TILE * TILE
    if WINDOW > 0:
        first = tl.maximum(first_position - WINDOW + 1, 0)
        begin = first // TILE * TILE
        edge = tl.maximum(tl.cdiv(last_position - WINDOW + 1, TILE) * TILE, begin)
        edge = tl.minimum(edge, diagonal)
    else:
        first = 0
        begin = 0
        edge = 0

    kv_head = head // G
    k_head, v_head = k_cache + kv_head * k_stride_j, v_cache + kv_head * v_stride_j
    table = block_tables + row.to(tl.int64) * table_stride_b
    to_log2 = scale * LOG2_E
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    if sinks is not None:
        top = tl.zeros([M], tl.float32) + tl.load(sinks + head).to(tl.float32) * LOG2_E
        total += 1.0
    acc = tl.zeros([M, DIMS], tl.float32)
    if WINDOW > 0:
        acc, top, total = _walk(acc, top, total, q, position, k_head, v_head, table, begin, edge, first,
                                seq_len, to_log2, k_stride_n, k_stride_p, v_stride_n, v_stride_p,
                                K, P, WINDOW, True, TILE, DIMS, STAGES)  # fmt: skip
    acc, top, total = _walk(acc, top, total, q, position, k_head, v_head, table, edge, diagonal, first,
                            seq_len, to_log2, k_stride_n, k_stride_p, v_stride_n, v_stride_p,
                            K, P, WINDOW, False, TILE, DIMS, STAGES)  # fmt: skip
    acc, top, total = _walk(acc, top, total, q, position, k_head, v_head, table, diagonal, end, first,
                            seq_len, to_log2, k_stride_n, k_stride_p, v_stride_n, v_stride_p,
                            K, P, WINDOW, True, TILE, DIMS, STAGES)  # fmt: skip

    o = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (token[:, None] * H + head) * K + d[None, :], o, mask=inside)


def prefill_attention(
    q_THK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_query_len: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
) -> Tensor:
    num_tokens, num_heads, head_dim = q_THK.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    num_rows = seq_lens_B.shape[0]
    out = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    if num_tokens == 0:
        return out
    dims = max(16, triton.next_power_of_2(head_dim))
    most, keys, warps, stages = SHAPES[q_THK.element_size(), dims]
    queries = min(most, max(16, triton.next_power_of_2(max_query_len)))
    _attend[(num_heads, num_tokens // queries + num_rows)](
        q_THK, k_cache, v_cache, query_starts_B1, seq_lens_B, block_tables_BN, out, sinks_H, scale, num_rows,
        *q_THK.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], block_tables_BN.stride(0),
        H=num_heads, G=num_heads // num_kv_heads, K=head_dim, P=block_size, WINDOW=window,
        M=queries, TILE=keys, DIMS=dims, STAGES=stages, num_warps=warps if queries == most else 4,
    )  # fmt: skip
    return out
