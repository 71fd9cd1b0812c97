"""decode_attention as one Triton kernel: split-KV attention, whose last program of a row combines the splits.

One program holds the G query heads that share a key/value head and walks a part of the row's keys, so each
key is read once. Every row is cut by its own length, on the device: the grid depends on upper bounds only,
and a captured CUDA graph stays right when lengths change. Programs without keys return at once.

    m = max_j s_j,  l = sum_j 2^(s_j - m),  o = sum_j 2^(s_j - m) v_j / l        scores s in units of log 2
    row: o = sum_i 2^(e_i - max e) o_i / sum_i 2^(e_i - max e)        of split i: o_i and e_i = m + log2 l

A sink is where the first split of a row begins: m = s_h and l = 1, before any key.

A row with one split in use is written directly. Otherwise each split leaves o_i and e_i (float32) and counts
itself; whoever counts last sees all of them, adds them up in the order of the splits, so that the result does
not depend on who that was, and sets the counter back to 0 for the next launch.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportReturnType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.arrival import is_last
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.kv_cache import limits
from fastkernels.kernels.launch import multiprocessors
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.splits import combine

TILE_BYTES = 16384  # of K, and of V, in one step of the loop: four programs fit on an SM, 128 KiB in flight
SMALLEST_TILE, LARGEST_TILE = 16, 128
STAGES = 3
DEEP_STAGES = 6  # where few programs fill a multiprocessor and each walks a whole row
WARPS = 4
COMBINED = 8192  # elements of partial results in one step of the combination: 64 registers a thread at most
MAX_SPLITS = 64
RESIDENT = 4  # programs that fit on a multiprocessor: 125 registers a thread, 38 KiB of shared memory (sm_90)
FULL = 0.9  # of what fits: 64 rows of 8 key/value heads
LAUNCHED = 16  # programs of a launch for each multiprocessor where splits only even out rows
LONGEST_SPLIT = 2048  # keys that one program walks, tile after tile: what may be left to it at the end
LOG2_E = tl.constexpr(1.4426950408889634)


def unsupported(kernel: str, q_BHK: Tensor, k_cache: Tensor, v_cache: Tensor, *_: object) -> str | None:
    return limits.triton(q_BHK, k_cache, v_cache)


@triton.jit
def _split_bounds(seq_len, split, splits, MIN_SPLIT: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr):
    """First visible key, keys [begin, end) of a split (none if begin >= end), number of splits in use."""
    first = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0
    start = first // TILE * TILE
    # Whole tiles, at least MIN_SPLIT keys: a short row needs no combination, a long one uses all splits.
    size = tl.cdiv(tl.cdiv(seq_len - start, splits), TILE) * TILE
    size = tl.maximum(size, MIN_SPLIT)
    begin = start + split * size
    return first, begin, tl.minimum(begin + size, seq_len), tl.cdiv(seq_len - start, size)


@triton.jit(do_not_specialize=["table_stride_b"])
def _attend(query, k_cache, v_cache, seq_lens, block_tables, out, split_out, split_lse, counters, sinks,
            scale, q_stride_b, q_stride_h, k_stride_n, k_stride_p, k_stride_j, v_stride_n, v_stride_p,
            v_stride_j, table_stride_b,
            G: tl.constexpr, K: tl.constexpr, P: tl.constexpr, WINDOW: tl.constexpr,
            MIN_SPLIT: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
            DIMS: tl.constexpr, SLOTS: tl.constexpr, STAGES: tl.constexpr,
            OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    # Heads of one token are neighbours in memory: programs that run together read neighbouring lines. First
    # splits of all rows come first: programs that find no keys then hold up nobody.
    kv_head, row, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    seq_len = tl.load(seq_lens + row)
    first, begin, end, used = _split_bounds(seq_len, split, tl.num_programs(2), MIN_SPLIT, WINDOW, TILE)
    g, d, j = tl.arange(0, HEADS), tl.arange(0, DIMS), tl.arange(0, TILE)
    head = kv_head * G + g
    out_mask = (g < G)[:, None] & (d < K)[None, :]
    group = row * tl.num_programs(0) + kv_head
    out += group * G * K
    here = g[:, None] * K + d[None, :]
    if begin >= end:
        if split == 0:
            tl.store(out + here, tl.zeros([HEADS, DIMS], out.dtype.element_ty), mask=out_mask)
        return

    q = tl.load(query + row * q_stride_b + head[:, None] * q_stride_h + d[None, :], mask=out_mask, other=0.0)
    to_log2 = scale * LOG2_E
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, DIMS], tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head, mask=g < G, other=0.0).to(tl.float32) * LOG2_E
        top = tl.where(split == 0, sink, top)
        total = tl.where(split == 0, 1.0, total)
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
    if split_out is None or used == 1:
        tl.store(out + here, acc.to(out.dtype.element_ty), mask=out_mask)
    else:
        slots = group * tl.num_programs(2)
        split_out += slots * G * K
        split_lse += slots * G
        tl.store(split_out + split * G * K + here, acc, mask=out_mask)
        tl.store(split_lse + split * G + g, top + tl.log2(total), mask=g < G)
        if is_last(counters + group, used):
            combine(out, split_out, split_lse, used, G, K, GROUP, DIMS, SLOTS)


def _fill(programs: int, num_sms: int) -> bool:
    """Whether about as many programs as fit are there without splits."""
    return programs >= FULL * RESIDENT * num_sms


def split_shape(rows: int, num_kv_heads: int, max_keys: int, tile: int, num_sms: int) -> tuple[int, int]:
    """(splits of a row at most, keys of a split at least) for a device of `num_sms` multiprocessors.

    Few rows: one wave of resident programs, down to one tile each. Rows that occupy every multiprocessor by
    themselves: splits only even out rows of different lengths, so they are long. Rows that fill them: none
    has more than LONGEST_SPLIT keys, and a row without splits takes a tenth less time than one that may have
    some.
    """
    programs = rows * num_kv_heads
    if programs < num_sms:
        smallest, wanted = tile, RESIDENT * num_sms // programs
    elif _fill(programs, num_sms):
        smallest, wanted = 8 * tile, triton.cdiv(max_keys, LONGEST_SPLIT)
    else:
        smallest, wanted = 8 * tile, LAUNCHED * num_sms // programs
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
    sinks_H: Tensor | None = None,
) -> Tensor:
    batch, num_heads, head_dim = q_BHK.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.empty((batch, num_heads, head_dim), dtype=q_BHK.dtype, device=q_BHK.device)
    if batch == 0:
        return out
    group, dims = num_heads // num_kv_heads, max(16, triton.next_power_of_2(head_dim))
    tile = max(SMALLEST_TILE, min(LARGEST_TILE, TILE_BYTES // (dims * k_cache.element_size())))
    longest = min(max_seq_len, window + tile) if window else max_seq_len
    num_sms = multiprocessors(q_BHK.device)
    splits, min_split = split_shape(batch, num_kv_heads, longest, tile, num_sms)
    stages = DEEP_STAGES if splits == 1 and not _fill(batch * num_kv_heads, num_sms) else STAGES
    split_out = split_lse = counters = None
    if splits > 1:
        parts = (batch, num_kv_heads, splits, group)
        split_out = torch.empty((*parts, head_dim), dtype=torch.float32, device=out.device)
        split_lse = torch.empty(parts, dtype=torch.float32, device=out.device)
        counters = zeroed(batch * num_kv_heads, out.device)
    heads = triton.next_power_of_2(group)
    slots = min(triton.next_power_of_2(splits), max(1, COMBINED // (heads * dims)))
    _attend[(num_kv_heads, batch, splits)](
        q_BHK, k_cache, v_cache, seq_lens_B, block_tables_BN, out, split_out, split_lse, counters, sinks_H,
        scale, *q_BHK.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], block_tables_BN.stride(0),
        G=group, K=head_dim, P=block_size, WINDOW=window, MIN_SPLIT=min_split, TILE=tile,
        HEADS=max(16, heads), GROUP=heads, DIMS=dims, SLOTS=slots, STAGES=stages,
        num_warps=WARPS, **overlap(out.device),
    )  # fmt: skip
    return out
