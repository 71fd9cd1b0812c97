"""Clouds of voxels, their orders and tables, as a model has them: `draw: clouds.FIELD`.

    grid_coord, offset, batch      different voxels of each cloud, where clouds end, the cloud of each voxel
    code, order                    along the curves, and what is made of voxels that become one:
    indices, idx_ptr, cluster      voxels in an order, where those of a cluster begin, the cluster of each
    neighbors                      the voxels around each
    places, voxels                 the voxel of each place of patches, and the place of each voxel

A cloud is a tree of eighths with as many voxels at each level as the case says: `counts` says it of all,
`clusters`, or the length of idx_ptr or of the coarser features, of the next one. Where nothing does there is
one cloud, in a cube that it fills by a third. All fields of one seed fit each other. Calls of a chain share
one cloud.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from fastkernels import kernels
from fastkernels.kernels.serialize import ORDERS
from fastkernels.records import Case, TensorSpec

_FILLED = 3  # a cube has so many times the voxels of its cloud


class _Sizes(NamedTuple):
    counts: tuple[tuple[int, ...], ...]  # voxels of each cloud, level by level
    depth: int  # bits of a coordinate; 0: as few as it takes
    curves: tuple[str, ...]
    taps: int
    patches: tuple[int, ...]  # places of each


def drawn(spec: TensorSpec, case: Case, seed: int, device: torch.device | str) -> Tensor:
    """In the shape and dtype of the spec. ValueError where the case does not say what it takes."""
    field, sizes = spec.draw.removeprefix("clouds."), _sizes(case)
    found = _patched(sizes, seed) if field in ("places", "voxels") else _cloud(sizes, seed)
    value = found[field].to(device, getattr(torch, spec.dtype), copy=True)
    if tuple(value.shape) != spec.shape:
        shapes = f"{list(spec.shape)}, drawn {list(value.shape)}"
        raise ValueError(f"{case.task} {case.id}: {spec.draw} is declared {shapes}")
    return value


def _sizes(case: Case) -> _Sizes:
    specs = {name: value for name, value in case.inputs.items() if isinstance(value, TensorSpec)}
    rows = {value.draw.removeprefix("clouds."): value.shape for value in specs.values()}
    voxels = next(
        rows[name][-1 if name in ("code", "order") else 0]
        for name in ("grid_coord", "voxels", "cluster", "indices", "neighbors", "code")
        if name in rows
    )
    counts = ((voxels,),)
    if isinstance(of_all := case.inputs.get("counts"), tuple):
        clouds = rows["offset"][0]
        counts = tuple(of_all[at : at + clouds] for at in range(0, len(of_all), clouds))
    elif "batch" in rows and case.batch is not None and case.batch.num_tokens == voxels:
        counts = (tuple(case.batch.seq_lens),)
    else:
        coarser = case.inputs.get("clusters")
        if "idx_ptr" in rows:
            coarser = rows["idx_ptr"][0] - 1
        elif "cluster" in rows:
            coarser = specs["feat"].shape[0]
        if isinstance(coarser, int):
            counts = ((voxels,), (coarser,))
    depth = case.inputs.get("depth")
    curves = tuple(case.init.get("order") or ORDERS[: rows["code"][0] if "code" in rows else 1])
    taps = round(rows["neighbors"][1] ** (1 / 3)) if "neighbors" in rows else 3
    lengths = tuple(case.batch.query_lens) if "places" in rows and case.batch is not None else ()
    return _Sizes(counts, depth if isinstance(depth, int) else 0, curves, taps, lengths)


@lru_cache(maxsize=2)
def _cloud(sizes: _Sizes, seed: int) -> dict[str, Tensor]:
    generator = Generator("cpu").manual_seed(seed)
    counts = torch.tensor(sizes.counts, device="cpu")
    levels, clouds = counts.shape
    side = math.ceil((_FILLED * int(counts[-1].max())) ** (1 / 3))  # of the cube of the coarsest voxels
    depth = sizes.depth or (side - 1).bit_length() + levels - 1
    side = min(side, 1 << depth - levels + 1)
    grids = [_tree(counts[:, cloud].tolist(), side, generator) for cloud in range(clouds)]
    grid_coord = torch.cat(grids)
    batch = torch.arange(clouds, device="cpu").repeat_interleave(counts[0])
    code, order, _ = kernels.serialize(grid_coord, batch, depth, sizes.curves, impl="torch")
    found = {
        "grid_coord": grid_coord,
        "offset": counts[0].cumsum(0),
        "batch": batch,
        "code": code,
        "order": order,
        "indices": order[0],
        "neighbors": kernels.sparse_neighbors(grid_coord, batch, sizes.taps, impl="torch"),
    }
    if levels > 1:
        *_, cluster, idx_ptr, _ = kernels.coarsen(code, order, int(counts[1].sum()), impl="torch")
        found |= {"cluster": cluster, "idx_ptr": idx_ptr}
    return found


def _tree(counts: list[int], side: int, generator: Generator) -> Tensor:
    """[N, 3]: so many different voxels of the finest level, which lie in so many of each coarser one. Those
    of the coarsest are anywhere in a cube of this side."""
    *finer, coarsest = counts
    cell_M = torch.randperm(side**3, generator=generator, device="cpu")[:coarsest]
    grid_M3 = torch.stack([cell_M // side**axis % side for axis in range(3)], 1)
    for number in reversed(finer):
        first_M = torch.randint(8, (len(grid_M3),), generator=generator, device="cpu")
        is_more = torch.ones(len(grid_M3), 8, dtype=torch.bool, device="cpu").scatter_(
            1, first_M[:, None], False
        )
        others_K2 = is_more.nonzero()
        chosen = torch.randperm(len(others_K2), generator=generator, device="cpu")[: number - len(grid_M3)]
        one_M2 = torch.stack((torch.arange(len(grid_M3), device="cpu"), first_M), 1)
        parent_N, eighth_N = torch.cat((one_M2, others_K2[chosen])).unbind(1)
        grid_M3 = 2 * grid_M3[parent_N] + torch.stack([eighth_N >> axis & 1 for axis in range(3)], 1)
    return grid_M3[torch.randperm(len(grid_M3), generator=generator, device="cpu")]


@lru_cache(maxsize=2)
def _patched(sizes: _Sizes, seed: int) -> dict[str, Tensor]:
    """Patches of these lengths. Some have voxels of the one before behind their own, as many as there are
    places too many."""
    generator = Generator("cpu").manual_seed(seed)
    (voxels,) = sizes.counts[0]
    borrowed, own = sum(sizes.patches) - voxels, list(sizes.patches)
    for patch in range(1, len(own)):
        taken = max(0, min(borrowed, own[patch] - 1, own[patch - 1]))
        own[patch], borrowed = own[patch] - taken, borrowed - taken
    if borrowed or not voxels:
        raise ValueError(f"patches of {sizes.patches} places have no room for {voxels} voxels")
    order = torch.randperm(voxels, generator=generator, device="cpu")
    places: list[Tensor] = []
    inverse, at, begin = torch.empty_like(order), 0, 0
    for length, mine in zip(sizes.patches, own, strict=True):
        row = order[at : at + mine]
        inverse[row] = torch.arange(begin, begin + mine, device="cpu")
        places.append(
            torch.cat((row, places[-1][len(places[-1]) - (length - mine) :])) if length > mine else row
        )
        at, begin = at + mine, begin + length
    return {"places": torch.cat(places), "voxels": inverse}
