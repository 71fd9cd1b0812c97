"""Which voxels lie around each voxel: the table by which a submanifold convolution reads.

    neighbors[n, (a K + b) K + c] = m where batch[m] = batch[n], grid[m] = grid[n] + (a, b, c) - K // 2
                                    -1 where there is no such voxel

N voxels of several clouds · K taps on each axis, odd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

MOST_SIDE = 1 << 16  # of a grid: a cloud and three coordinates beside their margins are one number of 64 bits
_MARGIN = 8  # around a grid, for neighbours outside


def _steps(taps: int, device: torch.device) -> Tensor:
    """[K^3, 3]: x slowest."""
    step_K = torch.arange(taps, device=device) - taps // 2
    return torch.cartesian_prod(step_K, step_K, step_K)


def _reference(grid_coord_N3: Tensor, batch_N: Tensor, taps: int) -> Tensor:
    """A voxel is one number, and is looked for among those in order."""
    side = MOST_SIDE + _MARGIN
    x_N, y_N, z_N = grid_coord_N3.long().unbind(1)
    key_N = ((batch_N.long() * side + x_N) * side + y_N) * side + z_N
    sorted_N, from_N = key_N.sort()
    steps_K3 = _steps(taps, key_N.device)
    step_K = (steps_K3[:, 0] * side + steps_K3[:, 1]) * side + steps_K3[:, 2]
    wanted_NK = key_N[:, None] + step_K
    at_NK = torch.searchsorted(sorted_N, wanted_NK).clamp_max(max(len(key_N) - 1, 0))
    return torch.where(sorted_N[at_NK] == wanted_NK, from_N[at_NK], -1).int()


def _fake(grid_coord_N3: Tensor, batch_N: Tensor, taps: int) -> Tensor:
    return grid_coord_N3.new_empty((len(grid_coord_N3), taps**3), dtype=torch.int32)


_sparse_neighbors = Kernel(
    "sparse_neighbors",
    "(Tensor grid_coord, Tensor batch, int taps) -> Tensor",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _reference, devices=("cpu", "cuda")),
    ),
    rows=lambda grid_coord_N3, *_: len(grid_coord_N3),
)


def sparse_neighbors(grid_coord_N3: Tensor, batch_N: Tensor, taps: int, *, impl: str | None = None) -> Tensor:
    """int32 [N, taps^3], of different voxels with coordinates from 0 to below 2^16, and of up to 2^15 clouds.

    Raises KernelError when `impl` cannot serve the call, ValueError for taps without a middle.
    """
    if taps % 2 == 0 or not 1 <= taps <= 2 * _MARGIN - 1:
        raise ValueError(f"taps must be odd, 1 to {2 * _MARGIN - 1}, not {taps}")
    return _sparse_neighbors(grid_coord_N3, batch_N, taps, impl=impl)
