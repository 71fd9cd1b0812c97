"""The tiles that linear.py times, in the order in which it times them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from fastkernels.kernels import gemv, skinny
from fastkernels.kernels.launch import ceil_div
from fastkernels.kernels.skinny import Tile

SHARED_BYTES = 227 * 1024  # of a processor
MOST_PROGRAMS = 4  # on a processor at once
# By thought, in this order: taller tiles read less of x from L2, narrower ones leave more programs.
FIRST = ((128, 64), (64, 128), (256, 64), (128, 128), (32, 256))
COARSE = ((16, 256), (32, 128), (32, 256), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (256, 64))
SPLITS = (1, 2, 3, 4, 6, 8)
GEMV = [gemv.Tile(n, k, w) for n in (2, 4, 8) for k in (512, 1024, 2048, 4096) for w in (1, 2, 4, 8)]
ELEMENTS_OF_A_THREAD = (16, 128)  # fewer leave too little on its way, more do not fit in registers
PROGRAMS = (0.75, 4.0)  # of the processors: fewer leave memory idle, more have no need of splits


def stages_that_fit(height: int, width: int, rows: int, programs: int) -> int:
    """The most with which so many programs fit on a processor, to a depth of 8."""
    stage = 2 * width * (height + max(skinny.SMALLEST_DOT, rows))
    spare = height < 64  # Triton keeps stages - 1 tiles where it does not multiply by wgmma
    return min(8, SHARED_BYTES // programs // stage + spare)


def tile(height: int, width: int, splits: int, stages: int) -> Tile:
    return Tile(height, width, splits, stages, warps=4 if height <= 128 else 8, ahead=4)


def coarse(rows: int, inputs: int, outputs: int, processors: int) -> Iterator[Tile]:
    """The table's tile, what fills the processors once and twice, then the grid in an order that favours no
    part of it where time runs out."""
    yield skinny.tile_of(rows, inputs, outputs, processors)
    for height, width in FIRST:
        for programs in (2, 1):
            splits = round(programs * processors / ceil_div(outputs, height))
            splits = max(1, min(splits, skinny.MOST_SPLITS))
            yield tile(height, width, splits, stages_that_fit(height, width, rows, programs))
    tiles = list(grid(rows, outputs, processors))
    yield from random.Random(0).sample(tiles, len(tiles))


def grid(rows: int, outputs: int, processors: int) -> Iterator[Tile]:
    for height, width in COARSE:
        for splits in SPLITS:
            programs = ceil_div(outputs, height) * splits
            few, many = (share * processors for share in PROGRAMS)
            if programs < few or (splits > 1 and programs > many):
                continue
            at_once = {1, 2, min(ceil_div(programs, processors), MOST_PROGRAMS)}  # the last: all, if they fit
            for stages in sorted({stages_that_fit(height, width, rows, n) for n in at_once}, reverse=True):
                yield tile(height, width, splits, stages)


def gemv_tiles(rows: int) -> Iterator[gemv.Tile]:
    least, most = ELEMENTS_OF_A_THREAD
    for candidate in GEMV if rows == 1 else ():
        if least <= candidate.outputs * candidate.inputs // (32 * candidate.warps) <= most:
            yield candidate


def variations(best: Tile) -> Iterator[Tile]:
    yield from (best._replace(ahead=ahead) for ahead in (0, 2, 8))
    yield best._replace(warps=12 - best.warps)  # 4 and 8
    yield best._replace(stages=best.stages - 1)
