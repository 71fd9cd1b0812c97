"""Windows of packed frames whose patches are merged in blocks: attention in each of them alone.

    0 0 1      blocks of a frame of 3 x 3, in windows of 2 x 2; those at the right and lower edge are smaller
    0 0 1      order: 0 1 3 4 | 2 5 | 6 7 | 8, window by window, row by row in each
    2 2 3

B frames · P patches · n of a block
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fastkernels.nn.merged_patches import MergedPatches, Patching
from fastkernels.nn.program import Place


def count_windows(grids: Iterable[tuple[int, int]], merge_size: int, side: int) -> int:
    """Of frames with so many rows and columns of patches. side: of a window, in blocks."""
    return sum(math.prod(-(-length // merge_size // side) for length in grid) for grid in grids)


def window_order(
    spatial_shapes: Tensor, cu_seqlens: Tensor, num_blocks: int, num_windows: int, merge_size: int, side: int
) -> tuple[Tensor, Tensor]:
    """int64 [P / n], the blocks in the order of their windows, and int32 [num_windows + 1], where each
    window's patches begin. spatial_shapes and cu_seqlens: as of a launch (nn/merged_patches)."""
    patches = merge_size**2
    begins_B1 = cu_seqlens // patches
    lengths_B, sides_B2 = begins_B1.diff(), spatial_shapes // merge_size
    counts_B2 = (sides_B2 + side - 1) // side
    windows_B = counts_B2.prod(1)
    facts_BF = torch.stack(
        (begins_B1[:-1], windows_B.cumsum(0) - windows_B, sides_B2[:, 1], counts_B2[:, 1]), dim=1
    )
    spread_NF = torch.repeat_interleave(facts_BF, lengths_B, dim=0, output_size=num_blocks)
    begin_N, first_N, columns_N, across_N = spread_NF.unbind(1)
    place_N = torch.arange(num_blocks, device=spatial_shapes.device) - begin_N
    down_N, right_N = place_N // columns_N // side, place_N % columns_N // side
    window_N, order_N = torch.sort(first_N + down_N * across_N + right_N, stable=True)
    each = torch.arange(num_windows + 1, device=spatial_shapes.device)
    return order_N, (torch.searchsorted(window_N, each) * patches).int()


class WindowedPatches(MergedPatches):
    """Beside the arguments of MergedPatches a launch gets the number of its windows."""

    def __init__(
        self,
        patching: Patching,
        place: Place,
        mean: Sequence[float],
        deviation: Sequence[float],
        side: int,
    ) -> None:
        super().__init__(patching, place, mean, deviation)
        self.side = side

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        size, merge = self.patching.patch_size, self.patching.merge_size
        grids = ((f.height // size, f.width // size) for (f,) in calls for _ in range(f.steps))
        return [*super().join(calls), count_windows(grids, merge, self.side)]

    def largest(self) -> list[Any]:
        pixels, grids, starts, longest = super().largest()
        sides = [(rows, columns) for rows, columns in grids.tolist()]
        windows = count_windows(sides, self.patching.merge_size, self.side)
        return [pixels, grids, starts, longest, windows]
