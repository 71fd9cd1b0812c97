"""prefill_attention in CUDA C++ for Hopper (kernels/hopper/prefill.cu): copy engine, wgmma, two warps that
load and two or three warpgroups that attend.

The lengths stay on the device: programs draw tiles of queries from a list until it ends.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.kernels import hopper
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.cuda_source import tensor_map
from fastkernels.kernels.launch import ceil_div, multiprocessors

MOST_HEADS = 128  # of one key/value head: a tile holds all of a token's
WARPGROUP = 128  # threads; it attends with 64 rows of queries and heads
SUMS = 4  # floats that a thread's part has besides its outputs: top and sum of two rows
STEPS_OF_A_PART = 4  # at least about so many
WAVES = 4  # of parts at most
MOST_SPLITS = 16


class Shape(NamedTuple):
    tile: int  # keys of a step
    stages: int  # steps on their way
    groups: int = 2  # warpgroups that attend
    ping_pong: bool = True  # the warpgroups take turns at the tensor cores
    beside: bool = True  # a step's softmax is computed beside the values of the step before
    half: bool = True  # a tile's first step is half as long where its keys end there

    @property
    def rows(self) -> int:
        """Of queries and heads in a tile."""
        return 64 * self.groups


def options(shape: Shape) -> dict[str, int]:
    """What a shape fixes of the kernel besides its tile."""
    return {
        "GROUPS": shape.groups,
        "PING_PONG": int(shape.ping_pong),
        "BESIDE": int(shape.beside),
        "HALF_STEP": int(shape.half),
    }


def shared_bytes(dims: int, shape: Shape) -> int:
    return 2 * dims * (shape.rows + 2 * shape.stages * shape.tile) + hopper.ALIGNMENT


# By padded head dimension. 80 keys are whole cache blocks of 16 and no other size.
SHAPES = {
    64: Shape(128, 3, groups=3),
    128: Shape(128, 2),
    192: Shape(64, 2),
    256: Shape(64, 2, ping_pong=False),
}
OF_BLOCKS_OF_16 = {256: Shape(80, 2, ping_pong=False, half=False)}


def shape_of(dims: int, block_size: int) -> Shape:
    return OF_BLOCKS_OF_16.get(dims, SHAPES[dims]) if block_size == 16 else SHAPES[dims]


def split_count(units: int, steps: int, num_sms: int) -> int:
    """Parts of a tile at most: few tiles that see many keys occupy every multiprocessor by their parts."""
    if units >= num_sms:
        return 1
    return max(1, min(steps // STEPS_OF_A_PART, WAVES * num_sms // units, MOST_SPLITS))


def unsupported(
    kernel: str,
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
) -> str | None:
    return hopper.unsupported(q_THK, k_cache, v_cache, block_tables_BN, scale, sinks_H, MOST_HEADS)


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
    out = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    num_tokens, num_heads, head_dim = q_THK.shape
    if num_tokens == 0:
        return out
    num_kv_heads, num_rows = k_cache.shape[2], len(seq_lens_B)
    dims, group = hopper.padded(head_dim), num_heads // num_kv_heads
    shape = shape_of(dims, k_cache.shape[1])
    tokens = shape.rows // group
    units = num_kv_heads * min(num_tokens // tokens + num_rows, num_rows * ceil_div(max_query_len, tokens))
    num_sms = multiprocessors(out.device)
    steps = ceil_div(min(max_seq_len, window + tokens + shape.tile) if window else max_seq_len, shape.tile)
    splits = split_count(units, steps, num_sms)
    split_out = split_lse = None
    if splits > 1:
        split_out = torch.empty(units * splits * shape.rows * dims, dtype=torch.float32, device=out.device)
        split_lse = torch.empty(
            units * splits * WARPGROUP * shape.groups * SUMS, dtype=torch.float32, device=out.device
        )
    constant = hopper.constants(q_THK, k_cache, shape.tile, shape.stages, window, sinks_H)
    constant |= options(shape) | {"SPLIT": int(splits > 1)}
    function = hopper.function("prefill", constant, shared_bytes(dims, shape), q_THK.device)
    maps = [
        tensor_map(q_THK, (2, 1, 0), (hopper.PANEL, group, tokens)),
        hopper.cache_map(k_cache, shape.tile),
        hopper.cache_map(v_cache, shape.tile),
    ]
    params = hopper.params(
        maps, out=out.data_ptr(), query_starts=query_starts_B1.data_ptr(), seq_lens=seq_lens_B.data_ptr(),
        tables=block_tables_BN.data_ptr(), sinks=hopper.address(sinks_H),
        counters=zeroed(2 + shape.groups * units * (splits > 1), out.device).data_ptr(), num_rows=num_rows,
        split_out=hopper.address(split_out), split_lse=hopper.address(split_lse), splits=splits,
        scale_log2=scale * hopper.LOG2_E, num_kv_heads=num_kv_heads, window=window,
        table_stride=block_tables_BN.stride(0),
    )  # fmt: skip
    function.launch((min(units * splits, num_sms), 1, 1), WARPGROUP * (shape.groups + 1), params)
    return out
