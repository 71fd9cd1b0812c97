"""decode_attention in CUDA C++ for Hopper (kernels/hopper/decode.cu): the copy engine fetches cache blocks,
few programs walk long parts of rows.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.kernels import hopper
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.launch import ceil_div, multiprocessors

MOST_HEADS = 16
THREADS = 160
MOST_SPLITS = 64


class Shape(NamedTuple):
    tile: int  # keys of a step
    stages: int  # steps on their way
    resident: int  # programs of a multiprocessor
    cluster: int = 1  # programs that add up their parts before they leave one


def shared_bytes(dims: int, shape: Shape) -> int:
    return 4 * dims * shape.stages * shape.tile + hopper.ALIGNMENT


SHAPES = {64: Shape(128, 3, 2), 128: Shape(64, 3, 2), 192: Shape(64, 2, 2), 256: Shape(64, 2, 1, cluster=4)}


def unsupported(
    kernel: str,
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
) -> str | None:
    return hopper.unsupported(q_BHK, k_cache, v_cache, block_tables_BN, scale, sinks_H, MOST_HEADS)


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
    out = torch.empty(q_BHK.shape, dtype=q_BHK.dtype, device=q_BHK.device)
    if batch == 0:
        return out
    num_kv_heads, dims = k_cache.shape[2], hopper.padded(head_dim)
    shape = SHAPES[dims]
    longest = min(max_seq_len, window + shape.tile) if window else max_seq_len
    units, group = batch * num_kv_heads, num_heads // num_kv_heads

    def most_splits(cluster: int) -> int:
        # Clusters do not fill the last multiprocessors: those that may share one are 16 or 18.
        wanted = shape.resident * (multiprocessors(out.device) - (cluster if cluster > 1 else 0)) // units
        # A part costs its keys, and its heads' sums when the parts are added up, by each program of a cluster
        # as many heads of as many clusters: keys / splits + group splits / cluster^2 is least there.
        quickest = cluster * isqrt(longest // group)
        return min(wanted, quickest, MOST_SPLITS, ceil_div(longest, shape.tile)) // cluster

    cluster = shape.cluster if group % shape.cluster == 0 and most_splits(shape.cluster) else 1
    parts_of_a_row = max(1, most_splits(cluster))
    split_out = split_lse = counters = None
    if parts_of_a_row > 1:
        parts = (batch, parts_of_a_row, num_heads)
        split_out = torch.empty((*parts, head_dim), dtype=torch.float32, device=out.device)
        split_lse = torch.empty(parts, dtype=torch.float32, device=out.device)
        counters = zeroed(units * cluster, out.device)
    constant = hopper.constants(q_BHK, k_cache, shape.tile, shape.stages, window, sinks_H)
    constant["CLUSTER"] = cluster
    function = hopper.function("decode", constant, shared_bytes(dims, shape), q_BHK.device)
    # No map of queries: they are read as they lie.
    cache_maps = [hopper.cache_map(cache, shape.tile) for cache in (k_cache, v_cache)]
    params = hopper.params(
        [cache_maps[0], *cache_maps], out=out.data_ptr(), query=q_BHK.data_ptr(),
        seq_lens=seq_lens_B.data_ptr(), tables=block_tables_BN.data_ptr(), sinks=hopper.address(sinks_H),
        counters=hopper.address(counters), split_out=hopper.address(split_out),
        split_lse=hopper.address(split_lse), q_stride_t=q_BHK.stride(0), q_stride_h=q_BHK.stride(1),
        scale_log2=scale * hopper.LOG2_E, window=window, num_rows=batch, num_kv_heads=num_kv_heads,
        table_stride=block_tables_BN.stride(0),
    )  # fmt: skip
    function.launch((num_kv_heads, batch, parts_of_a_row * cluster), THREADS, params)
    return out
