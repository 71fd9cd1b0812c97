"""Times of `linear` by tile, of `triton` and, for one row, `gemv`, beside torch.nn.functional.linear, at the
shapes of a decode step. With `--glu` of `linear_glu`, beside the same followed by a glu kernel.

    TB/s = bytes of the weight / time of a call

A captured CUDA graph calls once with each of several weights, together several times the L2 cache, so that
every weight comes from memory; the time of a call is the median over replays / calls. A tile is timed only if
its answer is within 1e-2 of float32 and repeats bitwise. First the tiles of `gemv`, then a coarse grid of
`triton`'s (tiles.py), then variations of the best of those. `--between` puts an elementwise kernel before
every call, of PyTorch and of ours alike, as other kernels lie between the linears of a model: without it our
calls overlap with each other, which flatters them.

python benchmarks/sweeps/linear.py --seconds 540 --out sweep.json
python benchmarks/sweeps/linear.py --glu --between --rows 2 8 16 32 --seconds 300 --out sweep_glu.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from tiles import coarse, gemv_tiles, variations
from timing import is_lost, median_us
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import linear

from fastkernels import kernels
from fastkernels.kernels import gemv, linear_gemv, linear_glu_gemv, linear_glu_triton, linear_triton, skinny
from fastkernels.kernels.launch import ceil_div, multiprocessors
from fastkernels.kernels.skinny import Tile
from fastkernels.measure.environment import environment

SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))  # outputs, inputs
GATED = ((28672, 4096),)  # half of the outputs are gates
ROWS = (1, 2, 4, 8, 16, 32)
COLD_BYTES = 300e6  # of weights in a graph: five times the 60 MB of L2
FEWEST_CALLS = 2  # weights beyond COLD_BYTES are cold by themselves
REPLAYS, WARM_UPS = 23, 2
LIMIT = 1e-2  # relative to the norm of the answer
BEST, PRINTED = 3, 4
COARSE_SHARE = 0.75  # of the time


class Timed(NamedTuple):
    us: float
    name: str
    tile: Tile | gemv.Tile | None


class Product(NamedTuple):
    """A kernel to sweep: a call with a tile of ours, what else computes it, its answer of x @ weight.T."""

    launch: Callable[[Tensor, Tensor, Tile], Tensor]
    launch_gemv: Callable[[Tensor, Tensor, gemv.Tile], Tensor]
    others: dict[str, Callable[[Tensor, Tensor], Tensor]]
    answer: Callable[[Tensor], Tensor]


def parts(glu: str) -> Callable[[Tensor, Tensor], Tensor]:
    """linear_glu as cuBLAS's product and an implementation of glu."""
    return lambda x, weight: kernels.glu(linear(x, weight), "silu", impl=glu)


LINEAR = Product(
    lambda x, weight, tile: linear_triton.launch(x, weight, None, tile),
    lambda x, weight, tile: linear_gemv.launch(x, weight, None, tile),
    {"torch": linear},
    lambda product: product,
)
LINEAR_GLU = Product(
    lambda x, weight, tile: linear_glu_triton.launch(x, weight, None, "silu", tile),
    lambda x, weight, tile: linear_glu_gemv.launch(x, weight, None, "silu", tile),
    {"torch, then glu of triton": parts("triton"), "torch, then glu of inductor": parts("inductor")},
    lambda product: kernels.glu(product, "silu", impl="reference"),
)


def graph_time_us(call: Callable[[Tensor], Tensor], weights: list[Tensor], between: Callable | None) -> float:
    """Median over replays of a graph, in microseconds a call."""

    def all_calls() -> None:
        for weight in weights:
            if between is not None:
                between()
            call(weight)

    all_calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_calls()
    return median_us(graph.replay, REPLAYS, WARM_UPS) / len(weights)


def refused(call: Callable[[Tensor], Tensor], weight: Tensor, expected: Tensor) -> str | None:
    """Why a tile is not timed, or None."""
    try:
        first, again = call(weight), call(weight)
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        if is_lost(error):
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:100]
    error = ((first.float() - expected).norm() / expected.norm()).item()
    if not error <= LIMIT:
        return f"wrong by {error:.2g}"
    return None if torch.equal(first, again) else "does not repeat bitwise"


def sweep(
    product: Product, rows: int, weights: list[Tensor], seconds: float, with_between: bool
) -> tuple[list[Timed], dict]:
    """Times in rising order, those of libraries among them, and what was refused."""
    outputs, inputs = weights[0].shape
    begun = time.monotonic()
    x = torch.randn(rows, inputs, device="cuda", dtype=weights[0].dtype)
    between = (lambda: x.mul_(1.0)) if with_between else None
    expected = product.answer(x.float() @ weights[0].float().T)
    timed, tried, reasons = [], set(), {}

    def attempt(name: str, call: Callable[[Tensor], Tensor], tile: Tile | gemv.Tile | None = None) -> None:
        if reason := refused(call, weights[0], expected):
            reasons[str(tuple(tile) if tile else name)] = reason
        else:
            timed.append(Timed(graph_time_us(call, weights, between), name, tile))

    def attempt_tiles(name: str, launch: Callable, tiles: Iterator[Tile | gemv.Tile], until: float) -> None:
        for tile in tiles:
            if time.monotonic() - begun > until:
                return
            if tile in tried or (isinstance(tile, Tile) and tile.stages < 2):
                continue
            tried.add(tile)
            attempt(name, lambda weight, tile=tile: launch(x, weight, tile), tile)

    for name, function in product.others.items():
        attempt(name, lambda weight, function=function: function(x, weight))
    tiles = coarse(rows, inputs, outputs, multiprocessors(x.device))
    attempt_tiles("gemv", product.launch_gemv, gemv_tiles(rows), COARSE_SHARE * seconds)
    attempt_tiles("triton", product.launch, tiles, COARSE_SHARE * seconds)
    for _, tile in sorted((t.us, t.tile) for t in timed if isinstance(t.tile, Tile))[:BEST]:
        attempt_tiles("triton", product.launch, variations(tile), seconds)
    return sorted(timed, key=lambda t: t.us), reasons


def show(rows: int, outputs: int, inputs: int, timed: list[Timed], reasons: dict, processors: int) -> None:
    chosen = (skinny.tile_of(rows, inputs, outputs, processors), gemv.tile_of(inputs))
    mine = [t for t in timed if t.tile]
    print(f"\nrows {rows} N {outputs} K {inputs}: {len(mine)} tiles timed, {len(reasons)} refused")
    now = [t for t in mine if t.tile in chosen and t not in mine[:PRINTED]]
    for t in [t for t in timed if not t.tile] + mine[:PRINTED] + now:
        mark = " <- the table's" if t.tile in chosen else ""
        print(f"  {t.us:8.2f} us {2e-6 * outputs * inputs / t.us:5.2f} TB/s  {t.name} {t.tile or ''}{mark}")
    for tile, reason in list(reasons.items())[:2]:
        print(f"  refused {tile}: {reason}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument(
        "--shapes", nargs="+", help="outputs x inputs; the default: those of Llama-3.1-8B's decode step"
    )
    parser.add_argument("--glu", action="store_true", help="linear_glu, half of whose outputs are gates")
    parser.add_argument("--seconds", type=float, default=540, help="for all, shared out evenly")
    parser.add_argument("--between", action="store_true", help="an elementwise kernel before every call")
    parser.add_argument("--out", type=Path, help="JSON of every time")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device")
    begun, found = time.monotonic(), []
    product, shapes = (LINEAR_GLU, GATED) if arguments.glu else (LINEAR, SHAPES)
    if arguments.shapes:
        shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes]
    problems = [(shape, rows) for shape in shapes for rows in arguments.rows]
    processors, weights = multiprocessors(torch.device("cuda", torch.cuda.current_device())), []
    for done, ((outputs, inputs), rows) in enumerate(problems):
        if not weights or weights[0].shape != (outputs, inputs):
            calls = max(FEWEST_CALLS, ceil_div(int(COLD_BYTES), 2 * outputs * inputs))
            weights.clear()  # their memory is needed
            weights += [
                # A parameter, as in a model: what loads weights early does so only of these.
                Parameter(
                    torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * inputs**-0.5, False
                )
                for _ in range(calls)
            ]
        left = arguments.seconds - (time.monotonic() - begun)
        timed, reasons = sweep(product, rows, weights, left / (len(problems) - done), arguments.between)
        show(rows, outputs, inputs, timed, reasons, processors)
        shape = {"rows": rows, "outputs": outputs, "inputs": inputs}
        found += [{**shape, "us": t.us, "name": t.name, "tile": t.tile and tuple(t.tile)} for t in timed]
        if arguments.out:  # what is known so far
            kernel = "linear_glu" if arguments.glu else "linear"
            report = {"kind": f"{kernel}-sweep", "between": arguments.between, "rows": found}
            report["environment"] = environment("cuda").model_dump()
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
