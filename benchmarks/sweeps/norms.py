"""Times of layer_norm and add_layer_norm in Triton by rows of a program and warps, bfloat16.

    TB/s = bytes of the inputs and results / time of a call

A captured CUDA graph calls once on each of several places, together several times the L2 cache; the time of
a call is the median over replays / calls. A variant counts only if it gives what the present one gives, to
one rounding. One line for each variant, the present one first.

python benchmarks/sweeps/norms.py --shapes 16384x1152 24000x1280 --out sweep.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from timing import is_lost, median_us

from fastkernels.kernels import layer_norm_triton as layer_norm
from fastkernels.kernels import norms
from fastkernels.kernels.launch import power_of_two
from fastkernels.measure.environment import environment

SHAPES = ("1500x1280", "4096x1152", "16384x1152", "24000x1280", "8192x4096")
COLD_BYTES, FEWEST_CALLS = 300e6, 2
ROWS, WARPS = (1, 2, 4, 8), (1, 2, 4, 8, 16)
MOST_ELEMENTS = 32768  # of a program
ELEMENTS_OF_A_THREAD = (4, 64)
REPLAYS, WARM_UPS = 21, 3
LIMIT = 2**-8  # one rounding to bfloat16


class Variant(NamedTuple):
    """None: as the kernel chooses."""

    rows: int | None = None
    warps: int | None = None

    def __str__(self) -> str:
        return "as it is" if self.rows is None else f"{self.rows} rows, {self.warps} warps"


def variants(width: int) -> Iterator[Variant]:
    yield Variant()
    least, most = ELEMENTS_OF_A_THREAD
    for rows, warps in product(ROWS, WARPS):
        elements = rows * power_of_two(width)
        if elements <= MOST_ELEMENTS and least <= elements // (32 * warps) <= most:
            yield Variant(rows, warps)


def changed(variant: Variant) -> AbstractContextManager[object]:
    if variant.rows is None:
        return nullcontext()
    rows, warps = variant
    chosen = {"rows_in_a_tile": lambda *_: rows, "warps": lambda _: {"num_warps": warps}}
    return mock.patch.multiple(norms, **chosen)


def time_us(variant: Variant, adds: bool, places: list[tuple[torch.Tensor, ...]]) -> tuple[float, Any]:
    """Microseconds of a call, and the first result of the last replay."""
    kernel = layer_norm.add_layer_norm if adds else layer_norm.layer_norm
    with changed(variant):
        kernel(*places[0], 1e-6)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [kernel(*place, 1e-6) for place in places]
    us = median_us(graph.replay, REPLAYS, WARM_UPS) / len(places)
    first = results[0][0] if adds else results[0]
    return us, first.float()


def of_shape(rows: int, width: int, adds: bool) -> Iterator[dict[str, Any]]:
    touched_bytes = 2 * rows * width * (4 if adds else 2)
    count = max(FEWEST_CALLS, round(COLD_BYTES / touched_bytes))
    weight, bias = torch.randn(2, width, device="cuda", dtype=torch.bfloat16)
    inputs = torch.randn(count, 1 + adds, rows, width, device="cuda", dtype=torch.bfloat16)
    places = [(*place, weight, bias) for place in inputs]
    expected = None
    for variant in variants(width):
        line: dict[str, Any] = {"rows": rows, "width": width, "adds": adds, "variant": str(variant)}
        try:
            line["us"], found = time_us(variant, adds, places)
            expected = found if expected is None else expected
            line["agrees"] = ((found - expected).norm() / expected.norm()).item() < LIMIT
            rate = touched_bytes / line["us"] / 1e6
            said = f"{line['us']:8.2f} us {rate:5.2f} TB/s" + " WRONG" * (not line["agrees"])
        except RuntimeError as error:
            if is_lost(error):
                raise
            line["error"] = said = str(error).splitlines()[0][:100]
        print(
            f"{rows:6} x {width:5} {'sum and norm' if adds else 'norm':12} {variant!s:18} {said}", flush=True
        )
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="ROWSxWIDTH")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device")
    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes]
    lines = [line for shape in shapes for adds in (False, True) for line in of_shape(*shape, adds)]
    if arguments.out:
        report = {"kind": "norms-sweep", "rows": lines, "environment": environment("cuda").model_dump()}
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
