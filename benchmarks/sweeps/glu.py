"""Times of glu in Triton by columns and rows of a program and its warps, bfloat16, F = 14,336.

    TB/s = bytes of the input and the result / time of a call

A captured CUDA graph calls once on each of several places, together several times the L2 cache; the time of
a call is the median over replays / calls. A variant counts only if it gives bitwise what the present one
gives. One line for each variant, the present one first, then the fastest ones.

python benchmarks/sweeps/glu.py --rows 1 8 32 --out sweep.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from timing import is_lost, median_us

from fastkernels.kernels import glu_triton as glu
from fastkernels.kernels.glu_triton import Tile
from fastkernels.measure.environment import environment

WIDTH = 14336
ROWS = (1, 8, 32, 64, 128, 256, 512, 2048, 8192)
COLD_BYTES, FEWEST_CALLS = 300e6, 2
TILES, TILE_ROWS, WARPS = (256, 512, 1024, 2048), (1, 2, 4), (1, 2, 4, 8, 16)
ELEMENTS_OF_A_THREAD = (4, 32)
REPLAYS, WARM_UPS = 21, 3
PRINTED = 3


def shown(tile: Tile | None) -> str:
    return f"{tile.rows} x {tile.columns}, {tile.warps} warps" if tile else "as it is"


def variants() -> Iterator[Tile | None]:
    """None: as the kernel chooses."""
    yield None
    least, most = ELEMENTS_OF_A_THREAD
    for columns, rows, warps in product(TILES, TILE_ROWS, WARPS):
        if least <= rows * columns // (32 * warps) <= most:
            yield Tile(columns, rows, warps)


def changed(tile: Tile | None) -> AbstractContextManager[object]:
    return mock.patch.object(glu, "tile_of", return_value=tile) if tile else nullcontext()


def time_us(tile: Tile | None, places: list[torch.Tensor]) -> tuple[float, torch.Tensor]:
    """Microseconds of a call, and the first result of the last replay."""
    with changed(tile):
        glu.glu(places[0], "silu")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [glu.glu(place, "silu") for place in places]
    return median_us(graph.replay, REPLAYS, WARM_UPS) / len(places), results[0]


def of_rows(rows: int) -> Iterator[dict[str, Any]]:
    touched_bytes = 2 * rows * WIDTH * 3
    count = max(FEWEST_CALLS, round(COLD_BYTES / touched_bytes))
    places = list(torch.randn(count, rows, 2 * WIDTH, device="cuda", dtype=torch.bfloat16))
    expected = None
    for tile in variants():
        line: dict[str, Any] = {"rows": rows, "variant": shown(tile)}
        try:
            line["us"], found = time_us(tile, places)
            expected = found if expected is None else expected
            line["agrees"] = torch.equal(found, expected)
        except RuntimeError as error:
            if is_lost(error):
                raise
            line["error"] = str(error).splitlines()[0][:100]
        yield line
        if tile is None or "us" not in line or not line["agrees"]:
            print(rows, line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device")
    lines = []
    for rows in arguments.rows:
        here = list(of_rows(rows))
        lines += here
        for line in sorted((line for line in here if line.get("agrees")), key=lambda line: line["us"])[
            :PRINTED
        ]:
            print(f"{rows:6} rows {line['variant']:22} {line['us']:8.2f} us", flush=True)
    if arguments.out:
        report = {"kind": "glu-sweep", "rows": lines, "environment": environment("cuda").model_dump()}
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
