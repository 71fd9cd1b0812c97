"""cross_attention in Triton: a program for each tile of a row's queries, head and split of the keys.

    s = scale log2(e) q k^T,  m = max_j s_j,  o = sum_j 2^(s_j - m) v_j / sum_j 2^(s_j - m)

online over key tiles. The keys of a row lie at its place in the pools.

Few rows are few programs, each of which would wait for one tile of keys after the other: they share the keys,
each leaves what kernels/splits.py adds up, and whoever counts last adds it up. All rows have equally many
keys, so the host knows the splits.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.arrival import is_last
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.launch import ceil_div, multiprocessors, power_of_two
from fastkernels.kernels.overlap import follow, overlap
from fastkernels.kernels.ragged import row_of_tile
from fastkernels.kernels.splits import combine


class Tile(NamedTuple):
    """Keys of a step of the loop, its pipeline stages, warps, and the most programs that share the keys."""

    keys: int
    stages: int
    warps: int
    splits: int = 1


# Prompts are a few tokens, and most rows decode one: the smallest tile that tl.dot takes.
QUERIES = 16
# By bytes of an element; splits are those of `tile_of`. Of float16 as swept on an H200
# (benchmarks/sweeps/cross_attention.py, docs/record/measured.md); of float32 not swept.
TILES = {2: Tile(keys=32, stages=3, warps=1), 4: Tile(keys=32, stages=2, warps=4)}
# On each processor at most, of a call with splits: more would only leave more to add up. Swept with them.
PROGRAMS = 4
SLOTS = 16  # splits added up at a time
LOG2_E = tl.constexpr(1.4426950408889634)


def unsupported(kernel: str, q_THK: Tensor, k_RSHK: Tensor, v_RSHK: Tensor, *_: object) -> str | None:
    if q_THK.stride(-1) != 1 or not (k_RSHK.is_contiguous() and v_RSHK.is_contiguous()):
        return "needs contiguous pools and a contiguous last dimension of the query"
    if (head_dim := q_THK.shape[-1]) > 256:
        return f"serves head dimensions up to 256, not {head_dim}"
    return checks.not_float32_compute(q_THK, k_RSHK, v_RSHK)


@triton.jit(do_not_specialize=["num_rows"])
def _attend(query, key, value, query_starts, rows, out, split_out, split_lse, counters, scale, num_rows,
            num_keys, split_keys, q_stride_t, q_stride_h,
            H: tl.constexpr, K: tl.constexpr, M: tl.constexpr, SHORT: tl.constexpr, TILE: tl.constexpr,
            DIMS: tl.constexpr, SLOTS: tl.constexpr, STAGES: tl.constexpr,
            OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    # Heads of a key are neighbours in memory: programs that run together read neighbouring lines.
    head, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    # Rows of at most M queries have a tile each; others are found as in dense_attention.
    row = tile if SHORT else row_of_tile(query_starts, num_rows, tile, M)
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    # Asked for along with the lengths, not behind the branch on them.
    pool = tl.load(rows + row).to(tl.int64) * num_keys * (H * K) + head * K
    first_query = 0 if SHORT else (tile - row_start // M - row) * M
    if first_query >= query_len:
        return

    i, j, d = first_query + tl.arange(0, M), tl.arange(0, TILE), tl.arange(0, DIMS)
    inside = (i < query_len)[:, None] & (d < K)[None, :]
    token = (row_start + i).to(tl.int64)
    q = tl.load(query + token[:, None] * q_stride_t + head * q_stride_h + d[None, :], mask=inside, other=0.0)
    to_log2 = scale * LOG2_E
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, DIMS], tl.float32)
    begin = split * split_keys
    for start in tl.range(begin, tl.minimum(begin + split_keys, num_keys), TILE, num_stages=STAGES):
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

    o = acc / total[:, None]
    of_head = token * H + head
    if split_out is None:
        tl.store(out + of_head[:, None] * K + d[None, :], o.to(out.dtype.element_ty), mask=inside)
    else:
        splits = tl.num_programs(2)
        slot = of_head * splits + split
        tl.store(split_out + slot[:, None] * K + d[None, :], o, mask=inside)
        tl.store(split_lse + slot, top + tl.log2(total), mask=i < query_len)
        if is_last(counters + tile * H + head, splits):
            # One query after the other: a decoding row has one.
            first = (row_start + first_query).to(tl.int64) * H + head
            for n in range(tl.minimum(query_len - first_query, M)):
                at = first + n * H
                combine(out + at * K, split_out + at * splits * K, split_lse + at * splits, splits,
                        1, K, 1, DIMS, SLOTS)  # fmt: skip


def _query_tiles(num_tokens: int, rows: int, max_query_len: int) -> int:
    return rows if max_query_len <= QUERIES else num_tokens // QUERIES + rows


def tile_of(programs: int, itemsize: int, processors: int) -> Tile:
    """The tile for a call of so many programs without splits: with as many splits as keep to PROGRAMS."""
    return TILES[itemsize]._replace(splits=max(1, PROGRAMS * processors // programs))


def keys_of_a_split(num_keys: int, tile: Tile) -> int:
    """Whole tiles, equally many in each split but the last, which has what remains: never nothing."""
    return ceil_div(ceil_div(num_keys, tile.keys), tile.splits) * tile.keys


def launch(
    q_THK: Tensor,
    k_RSHK: Tensor,
    v_RSHK: Tensor,
    query_starts_B1: Tensor,
    rows_B: Tensor,
    scale: float,
    max_query_len: int,
    tile: Tile,
) -> Tensor:
    num_tokens, num_heads, head_dim = q_THK.shape
    device, num_keys, rows = q_THK.device, k_RSHK.shape[1], len(rows_B)
    query_tiles = _query_tiles(num_tokens, rows, max_query_len)
    split_keys = keys_of_a_split(num_keys, tile)
    splits = ceil_div(num_keys, split_keys)
    out = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=device)
    split_out = split_lse = counters = None
    if splits > 1:
        of_splits = (num_tokens, num_heads, splits)
        split_out = torch.empty((*of_splits, head_dim), dtype=torch.float32, device=device)
        split_lse = torch.empty(of_splits, dtype=torch.float32, device=device)
        counters = zeroed(query_tiles * num_heads, device)
    dims = max(16, power_of_two(head_dim))
    _attend[(num_heads, query_tiles, splits)](
        q_THK, k_RSHK, v_RSHK, query_starts_B1, rows_B, out, split_out, split_lse, counters, scale, rows,
        num_keys, split_keys, *q_THK.stride()[:2],
        H=num_heads, K=head_dim, M=QUERIES, SHORT=max_query_len <= QUERIES, TILE=tile.keys, DIMS=dims,
        SLOTS=SLOTS, STAGES=tile.stages, num_warps=tile.warps, **overlap(device),
    )  # fmt: skip
    return out


def cross_attention(
    q_THK: Tensor,
    k_RSHK: Tensor,
    v_RSHK: Tensor,
    query_starts_B1: Tensor,
    rows_B: Tensor,
    scale: float,
    max_query_len: int,
) -> Tensor:
    num_tokens, num_heads, _ = q_THK.shape
    if num_tokens == 0:
        return torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    programs = _query_tiles(num_tokens, len(rows_B), max_query_len) * num_heads
    tile = tile_of(programs, q_THK.element_size(), multiprocessors(q_THK.device))
    return launch(q_THK, k_RSHK, v_RSHK, query_starts_B1, rows_B, scale, max_query_len, tile)
