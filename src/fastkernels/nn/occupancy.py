"""Occupancy grids (kernels/occupancy.py) made of cells, of a snapshot's densities, and random ones."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fastkernels.kernels.occupancy import morton

_LEAST = 0.01  # optical thickness of a step
_BLOBS = 8  # on a side of a cascade, of which a random scene fills a share
_FILLED = 0.25


def is_occupancy(name: str) -> bool:
    """Whether a parameter is such a grid."""
    return name.rpartition(".")[2] == "density_grid"


def packed(occupied_MSSS: Tensor) -> Tensor:
    """uint8 [M, S^3 / 8] of cells by x, y and z on the host. Where there is a cascade below, a cell is
    occupied as that says."""
    occupied_MSSS = occupied_MSSS.clone()
    cascades, side = occupied_MSSS.shape[:2]
    half, middle = side // 2, slice(side // 4, side - side // 4)
    for below, cascade in pairwise(occupied_MSSS):
        eight = below.view(half, 2, half, 2, half, 2).permute(0, 2, 4, 1, 3, 5)
        cascade[middle, middle, middle] = eight.flatten(3).any(-1)
    bits_MC = torch.empty(cascades, side**3, dtype=torch.uint8, device="cpu")
    bits_MC[:, _places(side)] = occupied_MSSS.flatten(1).to(torch.uint8)
    powers = 2 ** torch.arange(8, dtype=torch.uint8, device="cpu")
    return (bits_MC.view(cascades, -1, 8) * powers).sum(-1, dtype=torch.uint8)


def of_densities(density_MC: Tensor) -> Tensor:
    """The grid of optical thicknesses of a step, cells in Morton's order."""
    density_MC = density_MC.to("cpu", torch.float32)
    cascades, side = len(density_MC), round(density_MC.shape[1] ** (1 / 3))
    least = min(_LEAST, density_MC[0].clamp_min(0).double().mean().item())
    occupied_MC = (density_MC > least)[:, _places(side)]
    return packed(occupied_MC.view(cascades, side, side, side))


def random_grid(shape: tuple[int, ...], seed: int) -> Tensor:
    """uint8 of this shape: cubes fill a quarter of the finest cascade, and of each next one outside it."""
    cascades, size = shape
    side = round((8 * size) ** (1 / 3))
    generator = torch.Generator("cpu").manual_seed(seed)
    blobs = torch.rand((cascades, *[_BLOBS] * 3), generator=generator, device="cpu") < _FILLED
    for axis in (1, 2, 3):
        blobs = blobs.repeat_interleave(side // _BLOBS, axis)
    return packed(blobs)


def _places(side: int) -> Tensor:
    """Morton's place of each cell by x, y and z."""
    axis = torch.arange(side, device="cpu")
    return morton(*torch.meshgrid(axis, axis, axis, indexing="ij")).flatten()
