"""Clouds of voxels for the tests of their kernels, on a CPU and on a GPU: what a loop over voxels finds."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from fastkernels import kernels

# (voxels of each cloud, channels in, channels out, taps)
CONVOLUTIONS = [
    ((61, 1, 17), 6, 20, 5),
    ((90, 45), 16, 16, 3),
    ((33,), 33, 70, 3),
    ((1,), 3, 130, 3),
    ((50, 40), 100, 5, 1),
]


def cloud(sizes: tuple[int, ...], seed: int = 0, side: int = 7) -> tuple[Tensor, Tensor]:
    """Different voxels of each cloud int64 [N, 3], rising in no order, and their clouds [N]."""
    generator = torch.Generator().manual_seed(seed)
    cells = [torch.randperm(side**3, generator=generator)[:size] for size in sizes]
    grids = [torch.stack((cell // side**2, cell // side % side, cell % side), 1) for cell in cells]
    return torch.cat(grids), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def around(grid_N3: Tensor, batch_N: Tensor, taps: int) -> Tensor:
    """The table of neighbours, by a dictionary."""
    voxels = list(zip(batch_N.tolist(), *(axis.tolist() for axis in grid_N3.unbind(1))))
    places = {voxel: n for n, voxel in enumerate(voxels)}
    steps = [[k - taps // 2 for k in tap] for tap in product(range(taps), repeat=3)]
    return torch.tensor(
        [[places.get((b, x + i, y + j, z + k), -1) for i, j, k in steps] for b, x, y, z in voxels]
    )


def convolution(
    sizes: tuple[int, ...], inputs: int, outputs: int, taps: int, side: int = 7
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, neighbors, weight, bias; some voxels have none beside themselves."""
    generator = torch.Generator().manual_seed(1)
    grid, batch = cloud(sizes, side=side)
    fan_in = taps**3 * inputs
    weight = torch.randn(outputs, fan_in, generator=generator) / fan_in**0.5
    x, bias = (torch.randn(*shape, generator=generator) for shape in ((len(grid), inputs), (outputs,)))
    return x, kernels.sparse_neighbors(grid, batch, taps, impl="torch"), weight, bias


def convolved(x: Tensor, neighbors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In float64, voxel by voxel."""
    x, weight = x.double(), weight.double().unflatten(1, (neighbors.shape[1], -1))
    rows = []
    for row in neighbors.tolist():
        there = [k for k, m in enumerate(row) if m >= 0]
        rows.append(torch.einsum("kc,okc->o", x[[row[k] for k in there]], weight[:, there]))
    return torch.stack(rows) + (0 if bias is None else bias.double())
