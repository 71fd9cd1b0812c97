"""decode_attention as two Triton kernels: split-KV attention, then the weighted sum of the splits.

One program holds the G query heads that share a key/value head and walks a part of the row's keys, so each
key is read once. Every row is cut by its own length, on the device: the grid depends on upper bounds only,
and a captured CUDA graph stays right when lengths change. Programs without keys return at once.

    m = max_j s_j,  l = sum_j 2^(s_j - m),  o = sum_j 2^(s_j - m) v_j / l        scores s in units of log 2
    split results combine by weights l 2^(m - max m); the first kernel stores o and m + log2 l
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportReturnType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.launch import multiprocessors

TILE_BYTES = 16384  # of K, and of V, in one step of the loop: three programs fit on an SM, 96 KiB in flight
LARGEST_TILE = 128
STAGES = 3
WARPS = 4
MAX_SPLITS = 64
WAVES = 8  # programs wanted for each multiprocessor: 3 resident, and a last wave that wastes little
LOG2_E = tl.constexpr(1.4426950408889634)


def unsupported(kernel: str, q_BHK: Tensor, k_cache: Tensor, v_cache: Tensor, *_: object) -> str | None:
    return limits.triton(q_BHK, k_cache, v_cache)


@triton.jit
def _split_bounds(seq_len, split, SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, WINDOW: tl.constexpr,
                  TILE: tl.constexpr):  # fmt: skip
    """First visible key, keys [begin, end) of a split (none if begin >= end), number of splits in use."""
    first = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0
    start = first // TILE * TILE
    # Whole tiles, at least MIN_SPLIT keys: a short row needs no combination, a long one uses all splits.
    size = tl.cdiv(tl.cdiv(seq_len - start, SPLITS), TILE) * TILE
    size = tl.maximum(size, MIN_SPLIT)
    begin = start + split * size
    return first, begin, tl.minimum(begin + size, seq_len), tl.cdiv(seq_len - start, size)


@triton.jit(do_not_specialize=["table_stride_b"])
def _attend(query, k_cache, v_cache, seq_lens, block_tables, out, split_out, split_lse, scale,
            q_stride_b, q_stride_h, k_stride_n, k_stride_p, k_stride_j, v_stride_n, v_stride_p, v_stride_j,
            table_stride_b,
            H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, P: tl.constexpr, WINDOW: tl.constexpr,
            SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr,
            DIMS: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    # Heads of one token are neighbours in memory: programs that run together read neighbouring lines.
    kv_head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    seq_len = tl.load(seq_lens + row)
    first, begin, end, _ = _split_bounds(seq_len, split, SPLITS, MIN_SPLIT, WINDOW, TILE)
    g, d, j = tl.arange(0, HEADS), tl.arange(0, DIMS), tl.arange(0, TILE)
    head = kv_head * G + g
    out_mask = (g < G)[:, None] & (d < K)[None, :]
    if begin >= end:
        if SPLITS == 1:
            empty = tl.zeros([HEADS, DIMS], out.dtype.element_ty)
            tl.store(out + (row * H + head)[:, None] * K + d[None, :], empty, mask=out_mask)
        return

    q = tl.load(query + row * q_stride_b + head[:, None] * q_stride_h + d[None, :], mask=out_mask, other=0.0)
    to_log2 = scale * LOG2_E
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, DIMS], tl.float32)
    table = block_tables + row * table_stride_b
    for key in tl.range(begin, end, TILE, num_stages=STAGES):
        position = key + j
        seen = (position >= first) & (position < end)
        block = tl.load(table + position // P, mask=seen, other=0).to(tl.int64)
        offset = position % P
        mask = seen[:, None] & (d < K)[None, :]
        k_rows = k_cache + (block * k_stride_n + offset * k_stride_p + kv_head * k_stride_j)
        k = tl.load(k_rows[:, None] + d[None, :], mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * to_log2
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        v_rows = v_cache + (block * v_stride_n + offset * v_stride_p + kv_head * v_stride_j)
        v = tl.load(v_rows[:, None] + d[None, :], mask=mask, other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top

    acc = acc / total[:, None]
    if SPLITS == 1:
        tl.store(
            out + (row * H + head)[:, None] * K + d[None, :], acc.to(out.dtype.element_ty), mask=out_mask
        )
    else:
        slot = (row * H + head) * SPLITS + split
        tl.store(split_out + slot[:, None] * K + d[None, :], acc, mask=out_mask)
        tl.store(split_lse + slot, top + tl.log2(total), mask=g < G)


@triton.jit
def _combine(seq_lens, out, split_out, split_lse,
             H: tl.constexpr, K: tl.constexpr, WINDOW: tl.constexpr, SPLITS: tl.constexpr,
             MIN_SPLIT: tl.constexpr, TILE: tl.constexpr, SLOTS: tl.constexpr,
             DIMS: tl.constexpr):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    _, _, _, used = _split_bounds(tl.load(seq_lens + row), 0, SPLITS, MIN_SPLIT, WINDOW, TILE)
    s, d = tl.arange(0, SLOTS), tl.arange(0, DIMS)
    slot = (row * H + head) * SPLITS + s
    lse = tl.load(split_lse + slot, mask=s < used, other=float("-inf"))
    # A row without keys has no top; any finite one leaves its weights 0.
    top = tl.maximum(tl.max(lse, 0), -1e30)
    weights = tl.exp2(lse - top)
    parts = tl.load(
        split_out + slot[:, None] * K + d[None, :], mask=(s < used)[:, None] & (d < K)[None, :], other=0.0
    )
    total = tl.sum(weights, 0)
    o = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + (row * H + head) * K + d, o.to(out.dtype.element_ty), mask=d < K)


def split_shape(rows: int, num_kv_heads: int, max_keys: int, tile: int, num_sms: int) -> tuple[int, int]:
    """(splits of a row at most, keys of a split at least) for a device of `num_sms` multiprocessors.

    Few rows: as many splits as give every multiprocessor work, down to one tile each. Many rows: splits only
    even out rows of different lengths, and each costs a partial result, so they are long.
    """
    programs = rows * num_kv_heads
    smallest = tile * (1 if programs < num_sms else 4 if programs < 4 * num_sms else 8)
    wanted = triton.cdiv(WAVES * num_sms, programs)
    if programs >= num_sms:
        wanted = max(wanted, 8)
    return max(1, min(wanted, MAX_SPLITS, triton.cdiv(max_keys, smallest))), smallest


def decode_attention(
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
) -> Tensor:
    batch, num_heads, head_dim = q_BHK.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.empty((batch, num_heads, head_dim), dtype=q_BHK.dtype, device=q_BHK.device)
    if batch == 0:
        return out
    group, dims = num_heads // num_kv_heads, max(16, triton.next_power_of_2(head_dim))
    tile = min(LARGEST_TILE, TILE_BYTES // (dims * k_cache.element_size()))
    longest = min(max_seq_len, window + tile) if window else max_seq_len
    splits, min_split = split_shape(batch, num_kv_heads, longest, tile, multiprocessors(q_BHK.device))
    split_out = split_lse = out
    if splits > 1:
        split_out = torch.empty((batch, num_heads, splits, head_dim), dtype=torch.float32, device=out.device)
        split_lse = torch.empty((batch, num_heads, splits), dtype=torch.float32, device=out.device)
    shape = {
        "H": num_heads,
        "K": head_dim,
        "WINDOW": window,
        "SPLITS": splits,
        "MIN_SPLIT": min_split,
        "TILE": tile,
        "DIMS": dims,
    }
    _attend[(num_kv_heads, splits, batch)](
        q_BHK, k_cache, v_cache, seq_lens_B, block_tables_BN, out, split_out, split_lse, scale,
        *q_BHK.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], block_tables_BN.stride(0),
        G=group, P=block_size, HEADS=max(16, triton.next_power_of_2(group)), STAGES=STAGES, num_warps=WARPS,
        **shape,
    )  # fmt: skip
    if splits > 1:
        slots = triton.next_power_of_2(splits)
        _combine[(num_heads, batch)](seq_lens_B, out, split_out, split_lse, SLOTS=slots, num_warps=4, **shape)
    return out
