"""A trained radiance field as its parameters: what random ones are like, and a snapshot's flat vector.

`params_binary` has the density network's matrices, those of the colour network, then the table, row by row.
The last matrix of either network is padded to a multiple of 16 rows. `density_grid_binary` has the optical
thickness of each cell, from which the grid of bits follows (occupancy.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fastkernels.nn.misfits import Misfits
from fastkernels.nn.occupancy import of_densities
from fastkernels.nn.weight_map import WeightMap

# A trained table gives densities from nearly nothing to walls, so that rays end at different depths.
_TABLE = 48.0
_PADDED = 16
_FLAT, _DENSITIES = "params_binary", "density_grid_binary"


def table_range(name: str) -> tuple[float, float] | None:
    """Between what random values of a hash table lie; None of any other parameter."""
    return (-_TABLE, _TABLE) if name.endswith("hash_table") else None


def snapshot_map(model: nn.Module) -> WeightMap:
    """Of a model with a `tracer`: names of its parameters, and a snapshot's two vectors in their place."""
    names = {
        "density.*.weight": "tracer.network.density_network.weights.*",
        "colour.*.weight": "tracer.network.rgb_network.weights.*",
        "grid.table": "tracer.network.pos_encoding.hash_table",
        "density_grid": "tracer.density_grid",
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, ours in names.items():
        beginning, _, end = ours.partition("*")
        for parameter, tensor in model.named_parameters():
            if parameter.startswith(beginning):
                place = parameter.removeprefix(beginning)
                shapes[name.replace("*", place.removesuffix(end))] = tuple(tensor.shape)
    grid = shapes.pop("density_grid")
    return WeightMap(names, folding=Snapshot(shapes, grid))


@dataclass(frozen=True)
class Snapshot:
    """parts: the shapes of matrices and of the table, in the order of the flat vector; grid: that of the
    bits."""

    parts: Mapping[str, tuple[int, ...]]
    grid: tuple[int, ...]

    def fold(self, weights: Iterable[tuple[str, Tensor]], misfits: Misfits) -> Iterator[tuple[str, Tensor]]:
        """A snapshot's vectors as parameters; whatever else comes stays as it is."""
        for name, tensor in weights:
            if name == _FLAT:
                yield from self._split(tensor[:], misfits)
            elif name == _DENSITIES:
                density_MC = _fitting(name, tensor[:], 8 * math.prod(self.grid), misfits)
                yield "density_grid", of_densities(density_MC.view(self.grid[0], -1))
            else:
                yield name, tensor

    def _split(self, flat: Tensor, misfits: Misfits) -> Iterator[tuple[str, Tensor]]:
        padded = {name: (_rows(name, shape[0]), *shape[1:]) for name, shape in self.parts.items()}
        sizes = list(map(math.prod, padded.values()))
        flat = _fitting(_FLAT, flat, sum(sizes), misfits)
        for (name, shape), part in zip(padded.items(), flat.split(sizes)):
            yield name, part.view(shape)[: self.parts[name][0]]


def _rows(name: str, rows: int) -> int:
    """With those that pad a matrix."""
    return -(-rows // _PADDED) * _PADDED if name.endswith(".weight") else rows


def _fitting(name: str, vector: Tensor, length: int, misfits: Misfits) -> Tensor:
    """The vector, or zeros where it has another length."""
    if vector.shape == (length,):
        return vector
    misfits.has_wrong_shape(name, vector.shape, [length])
    return vector.new_zeros(length)
