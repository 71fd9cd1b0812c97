"""Attention over a paged cache for Hopper, in CUDA C++: what both kernels' calls share.

The copy engine fetches each cache block by its number, the tensor cores multiply from shared memory.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_longlong, c_void_p
from functools import cache

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.cuda_source import MISSING, Function, Params, compiled, nvrtc, tensor_map
from fastkernels.kernels.hopper.sources import source

HEAD_DIMS = (64, 256)  # from, to
LOG2_E = 1.4426950408889634
PANEL = 64  # elements of a row of a swizzled tile
ALIGNMENT = 1024  # bytes, of tiles in shared memory


class _Fields(ctypes.Structure):
    _fields_ = [
        ("out", c_void_p),
        ("query", c_void_p),
        ("query_starts", c_void_p),
        ("seq_lens", c_void_p),
        ("tables", c_void_p),
        ("sinks", c_void_p),
        ("counters", c_void_p),
        ("split_out", c_void_p),
        ("split_lse", c_void_p),
        ("q_stride_t", c_longlong),
        ("q_stride_h", c_longlong),
        ("scale_log2", c_float),
        ("num_rows", c_int),
        ("num_kv_heads", c_int),
        ("table_stride", c_int),
        ("window", c_int),
        ("splits", c_int),
    ]


def unsupported(
    q_THK: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables_BN: Tensor, scale: float,
    sinks_H: Tensor | None, most_heads: int,
) -> str | None:  # fmt: skip
    """Why neither kernel can serve a call, or None. most_heads: query heads of one key/value head."""
    if reason := checks.not_half(q_THK, k_cache, v_cache) or checks.not_aligned(q_THK, k_cache, v_cache):
        return reason
    if torch.cuda.get_device_capability(q_THK.device) != (9, 0):
        return "needs compute capability 9.0"
    head_dim, (_, block_size, num_kv_heads, _) = q_THK.shape[-1], k_cache.shape
    if not HEAD_DIMS[0] <= head_dim <= HEAD_DIMS[1] or head_dim % 8:
        return f"serves head dimensions from 64 to 256 that 8 divides, not {head_dim}"
    if block_size < 8 or block_size & (block_size - 1):
        return f"needs a block size that is a power of two from 8 on, not {block_size}"
    if (group := q_THK.shape[1] // num_kv_heads) > most_heads:
        return f"serves up to {most_heads} query heads of one key/value head, not {group}"
    if scale <= 0:
        return f"needs a positive scale, not {scale}"
    if sinks_H is not None and sinks_H.dtype not in (torch.float32, q_THK.dtype):
        return f"needs sinks of float32 or of the query's type, not {sinks_H.dtype}"
    if block_tables_BN.stride(1) != 1:
        return "needs block tables with a contiguous last dimension"
    if nvrtc() is None:
        return MISSING
    return None


def padded(head_dim: int) -> int:
    return -(-head_dim // PANEL) * PANEL


def constants(
    q_THK: Tensor, k_cache: Tensor, tile: int, stages: int, window: int, sinks_H: Tensor | None
) -> dict[str, int]:
    """What a kernel is compiled for."""
    head_dim = q_THK.shape[2]
    return {
        "DIMS": padded(head_dim),
        "HEAD": head_dim,
        "GROUP": q_THK.shape[1] // k_cache.shape[2],
        "PAGE": k_cache.shape[1],
        "TILE": tile,
        "STAGES": stages,
        "WINDOWED": int(window > 0),
        "SINKS": 0 if sinks_H is None else 1 if sinks_H.dtype == torch.float32 else 2,
        "BF16": int(q_THK.dtype == torch.bfloat16),
    }


def function(name: str, constant: dict[str, int], shared_bytes: int, device: torch.device) -> Function:
    """The kernel for these constants, compiled at its first use."""
    return _function(name, tuple(constant.items()), shared_bytes, device)


@cache
def _function(
    name: str, constant: tuple[tuple[str, int], ...], shared_bytes: int, device: torch.device
) -> Function:
    with torch.cuda.device(device):
        return Function(compiled(source(name, dict(constant)), "sm_90a"), name, shared_bytes)


def cache_map(cache: Tensor, tile: int) -> bytes:
    """Boxes of a cache block of one head, or of `tile` tokens of a longer block."""
    return tensor_map(cache, (3, 1, 2, 0), (PANEL, min(cache.shape[1], tile), 1, 1))


def params(maps: list[bytes], **values: object) -> Params:
    return Params(maps, _Fields, **values)


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
