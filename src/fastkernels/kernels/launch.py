"""What launches of row-wise Triton kernels share: how rows lie in memory, how many one program takes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# Elements of one program: 4 warps with two 16-byte bf16 loads in flight for each thread.
TILE_ELEMENTS = 2048
# Two 16-byte bf16 loads a thread hide latency; more elements a thread only cost registers.
ELEMENTS_OF_A_WARP = 32 * 16
MOST_WARPS = 16


class Rows(NamedTuple):
    """A tensor [..., D] seen as `count` rows.

    Row r starts at (r // inner) * outer_stride + (r % inner) * inner_stride.
    Two strides reach every view of a packed projection (`qkv[:, :H * K].view(T, H, K)`) without a copy.
    """

    tensor: Tensor
    count: int
    inner: int
    outer_stride: int
    inner_stride: int


def rows_of(x: Tensor) -> Rows:
    """The rows of `x`; copies only where more than two strides would be needed or the last one is not 1."""
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        x = x.contiguous()
    if x.ndim > 3:
        x = x.reshape(-1, *x.shape[-2:])
    if x.ndim == 1:
        return Rows(x, 1, 1, 0, 0)
    if x.ndim == 2:
        return Rows(x, x.shape[0], 1, x.stride(0), 0)
    outer, inner = x.shape[:2]
    if outer == 1 or x.stride(0) == inner * x.stride(1):
        return Rows(x, outer * inner, 1, x.stride(1), 0)
    return Rows(x, outer * inner, inner, x.stride(0), x.stride(1))


def rows_in_a_tile(count: int, width: int, tensor: Tensor) -> int:
    """Rows of `width` (a power of two) for one program: enough work for it, but every processor busy."""
    rows = max(1, TILE_ELEMENTS // width)
    busy = power_of_two(ceil_div(count, multiprocessors(tensor.device)))
    return min(rows, busy)


def warps(elements: int) -> dict[str, int]:
    """The launch option `num_warps` for a tile of `elements` (a power of two)."""
    return {"num_warps": min(MOST_WARPS, max(1, elements // ELEMENTS_OF_A_WARP))}


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def ceil_div(n: int, d: int) -> int:
    return -(-n // d)


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Processors of the GPU; 1 in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
