"""Finding the tiles of a ragged batch on the device, in Triton."""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_of_tile(query_starts, num_rows, tile, M: tl.constexpr):
    """The last row whose first tile is at or before `tile`: row b starts at tile query_starts[b] // M + b, so
    T // M + B tiles of M tokens suffice whatever the lengths are."""
    low, high = 0, num_rows - 1
    origin = tl.load(query_starts)
    while low < high:
        middle = (low + high + 1) // 2
        if (tl.load(query_starts + middle) - origin) // M + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low
