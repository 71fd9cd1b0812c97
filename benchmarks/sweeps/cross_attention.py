"""Times of `cross_attention` by tile and splits of `triton`, beside `paged`, in a decode step of Whisper: one
query of each row, 1,500 keys, 20 heads of 64, float16.

    TB/s = bytes of the keys and values / time of a call

A captured CUDA graph calls once with each of several places in the pools, together several times the L2
cache, so that keys come from memory; the time of a call is the median over replays / calls. All calls have
the same rows, as the layers of a step have: `paged` makes its tables once. A variant counts only if every row
is within 2^-10 of float32 and replays repeat bitwise what the first call found.

One line for each variant. Then for each number of rows the fastest ones and what the kernel would choose.
Last the tiles: how many times as long as the fastest they take, at the best splits of each, as a mean over
the rows.

python benchmarks/sweeps/cross_attention.py --seconds 50 --out sweep.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from timing import is_lost, median_us
from torch import Tensor

from fastkernels import kernels
from fastkernels.kernels import counters
from fastkernels.kernels.cross_attention import triton as cross
from fastkernels.kernels.cross_attention.triton import Tile
from fastkernels.kernels.launch import ceil_div, multiprocessors
from fastkernels.kernels.plans import plan_scope
from fastkernels.measure.environment import environment

KEYS, HEADS, HEAD_DIM, DTYPE = 1500, 20, 64, torch.float16
ROW_BYTES = 2 * KEYS * HEADS * HEAD_DIM * DTYPE.itemsize
ROWS = (1, 2, 4, 8, 16, 32)
COLD_BYTES = 300e6  # of keys and values in a graph: five times the 60 MB of L2
FEWEST_CALLS = 2  # places beyond COLD_BYTES are cold by themselves
# The likeliest first, should the time end.
TILE_KEYS, STAGES, WARPS = (64, 32, 128), (3, 4, 2), (4, 2, 1)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 24)
MOST_PROGRAMS = 10  # on a processor: where there are more, nothing is left to split for
REPLAYS, WARM_UPS = 11, 2
LIMIT = 2**-10  # of a row, relative L2: what the tests allow float16
PRINTED = 4


class Problem(NamedTuple):
    rows: int
    calls: list[tuple]  # arguments of each
    expected: Tensor  # of the first


class Timed(NamedTuple):
    rows: int
    us: float
    tile: Tile | None  # None: paged

    def __str__(self) -> str:
        rate = 1e-6 * self.rows * ROW_BYTES / self.us
        return f"{self.rows:3} rows {self.us:8.2f} us {rate:5.2f} TB/s  {self.tile or 'paged'}"


def calls_of(rows: int) -> int:
    return max(FEWEST_CALLS, ceil_div(int(COLD_BYTES), rows * ROW_BYTES))


def problem(rows: int, pools: list[Tensor]) -> Problem:
    query = torch.randn(rows, HEADS, HEAD_DIM, device="cuda", dtype=DTYPE)
    starts = torch.arange(rows + 1, device="cuda", dtype=torch.int32)
    rest = starts, torch.randperm(rows, device="cuda"), HEAD_DIM**-0.5, 1
    places = [[pool[n * rows :][:rows] for pool in pools] for n in range(calls_of(rows))]
    exact = (x.float() for x in (query, *places[0]))
    expected = kernels.cross_attention(*exact, *rest, impl="reference")
    return Problem(rows, [(query, *place, *rest) for place in places], expected)


def paged(*args) -> Tensor:
    """With the kernel that it has in a captured step."""
    with kernels.use(decode_attention="triton"):
        return kernels.cross_attention(*args, impl="paged")


def graph_time_us(call: Callable[..., Tensor], given: Problem) -> float:
    """Median over replays of a graph, in microseconds a call. Raises ValueError of a wrong answer."""
    first = call(*given.calls[0])
    error = ((first - given.expected).norm(dim=(1, 2)) / given.expected.norm(dim=(1, 2))).max().item()
    if not error <= LIMIT:
        raise ValueError(f"wrong by {error:.2g}")
    counters.prepare()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), plan_scope():
        answers = [call(*args) for args in given.calls]
    us = median_us(graph.replay, REPLAYS, WARM_UPS) / len(answers)
    if not torch.equal(first, answers[0]):
        raise ValueError("does not repeat bitwise")
    return us


def attempt(tile: Tile | None, given: Problem) -> Timed | None:
    call = paged if tile is None else lambda *args: cross.launch(*args, tile)
    try:
        timed = Timed(given.rows, graph_time_us(call, given), tile)
    except Exception as why:
        print(f"{given.rows:3} rows  refused {tile or 'paged'}: {type(why).__name__}: {str(why)[:100]}")
        if is_lost(why):
            raise
        return None
    print(timed, flush=True)
    return timed


def attempts(problems: list[Problem], processors: int) -> Iterator[tuple[Tile | None, Problem]]:
    yield from ((None, given) for given in problems)
    for keys, stages, warps in product(TILE_KEYS, STAGES, WARPS):
        for given, splits in product(problems, SPLITS):
            has_keys = (splits - 1) * keys < KEYS
            if splits == 1 or (has_keys and given.rows * HEADS * splits <= MOST_PROGRAMS * processors):
                yield Tile(keys, stages, warps, splits), given


def show(timed: list[Timed], processors: int) -> None:
    behind: dict[Tile, dict[int, float]] = defaultdict(dict)  # by tile without splits and rows
    for rows in sorted({t.rows for t in timed}):
        found = sorted((t for t in timed if t.rows == rows), key=lambda t: t.us)
        ours = [t for t in found if t.tile]
        now = cross.tile_of(rows * HEADS, DTYPE.itemsize, processors)
        print(f"\n{rows} rows; now {now}", *(t for t in found if not t.tile), *ours[:PRINTED], sep="\n  ")
        for t in reversed(ours):  # the fastest splits of a tile come last, and stay
            behind[t.tile._replace(splits=1)][rows] = t.us / ours[0].us
    print("\nOver the rows, at the best splits of each:")
    means = sorted((statistics.mean(ratios.values()), tile) for tile, ratios in behind.items())
    for mean, (keys, stages, warps, _) in means[:PRINTED]:
        print(f"  {mean:.3f}  {keys} keys, {stages} stages, {warps} warps")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--out", type=Path, help="JSON of every time")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device")
    begun, timed = time.monotonic(), []
    held = max(rows * calls_of(rows) for rows in arguments.rows)
    pools = [torch.randn(held, KEYS, HEADS, HEAD_DIM, device="cuda", dtype=DTYPE) for _ in "kv"]
    problems = [problem(rows, pools) for rows in arguments.rows]
    processors = multiprocessors(pools[0].device)
    for tile, given in attempts(problems, processors):
        if time.monotonic() - begun > arguments.seconds:
            print("the time is over")
            break
        if one := attempt(tile, given):
            timed.append(one)
    show(timed, processors)
    if arguments.out:
        found = [{"rows": t.rows, "us": t.us, "tile": t.tile and t.tile._asdict()} for t in timed]
        report = {"kind": "cross_attention-sweep", "rows": found}
        report["environment"] = environment("cuda").model_dump()
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
