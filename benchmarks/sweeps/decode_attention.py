"""Decode attention of Llama-3.1-8B by configuration of the Triton kernel, beside FlashInfer. Needs CUDA.

    python benchmarks/sweeps/decode_attention.py --out benchmarks/h200/decode_attention_sweep.json

One line for each shape and configuration: microseconds of a call, and the rate at which its keys and values
(bf16, 32 query heads, 8 key/value heads, head dim 128, blocks of 16 in random order) are read. A call is a
link of a captured chain; each link has its own query, caches and tables, together several times the L2
cache, so every link reads from memory. A reading is the median replay divided by the links. Every
configuration must agree with the first one of its shape. FlashInfer plans once, outside the graph.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timing import median_us
from torch import Tensor

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
# Rows, context of each, bound of the context that the grid is made for.
SHAPES = [
    (1, 200, 2048), (8, 1024, 2048), (32, 200, 2048), (32, 1024, 2048), (128, 1024, 2048), (256, 1024, 2048),
    (512, 160, 2048), (512, 1024, 2048), (8, 8192, 8192), (1, 8192, 8192),
]  # fmt: skip
CACHES = 4  # times the L2 cache, of keys and values in one chain
FEWEST_LINKS, MOST_LINKS = 4, 320
REPLAYS, WARM_UPS = 21, 3
AGREES = 2**-7  # two roundings to bf16, relative L2


class Config(NamedTuple):
    """Constants of the kernel's module; None leaves it as it is. splits: (at most, keys of one at least)."""

    name: str
    tile_bytes: int | None = None
    stages: int | None = None
    warps: int | None = None
    splits: tuple[int, int] | None = None


CONFIGS = [
    Config("as it is"),
    # Keys and values of one tile in flight (3 stages) or of two (5: the table is a load before the load).
    Config("stages 5", stages=5),
    Config("tile 32", tile_bytes=8192),
    Config("tile 32, stages 5", tile_bytes=8192, stages=5),
    Config("tile 128, warps 8", tile_bytes=32768, warps=8),
    Config("warps 8", warps=8),
    Config("warps 2", warps=2),
    Config("one split", stages=3, splits=(1, 64)),
    Config("one split, stages 5", stages=5, splits=(1, 64)),
    Config("2 splits of 512", splits=(2, 512)),
    Config("4 splits of 512", splits=(4, 512)),
    Config("4 splits of 64", splits=(4, 64)),
    Config("8 splits of 256", splits=(8, 256)),
    Config("16 splits of 128", splits=(16, 128)),
    Config("32 splits of 64", splits=(32, 64)),
    Config("64 splits of 64", splits=(64, 64)),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", help="ROWSxCONTEXTxBOUND, with commas between; all without it")
    parser.add_argument("--configs", help="names, with semicolons between; all without it")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    shapes = SHAPES
    if arguments.shapes:
        shapes = [tuple(int(n) for n in shape.split("x")) for shape in arguments.shapes.split(",")]
    wanted = arguments.configs.split(";") if arguments.configs else [c.name for c in CONFIGS]
    if unknown := set(wanted) - {c.name for c in CONFIGS}:
        parser.error(f"no configuration {unknown}; there are {', '.join(c.name for c in CONFIGS)}")
    if not torch.cuda.is_available():
        parser.error("needs CUDA")
    rows = [line for shape in shapes for line in _of_shape(*shape, [c for c in CONFIGS if c.name in wanted])]
    if arguments.out:
        from fastkernels.measure.environment import environment

        report = {"kind": "decode-attention-sweep", "rows": rows}
        report["environment"] = environment("cuda").model_dump()
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def _of_shape(rows: int, context: int, bound: int, configs: list[Config]) -> list[dict[str, Any]]:
    links = _links(rows, context, bound)
    read_bytes = rows * context * KV_HEADS * HEAD_DIM * 2 * 2
    sides: dict[str, Callable[[], tuple[float, list[Tensor]]]] = {
        config.name: lambda config=config: _triton(config, links) for config in configs
    }
    sides["flashinfer"] = lambda: _flashinfer(links)
    lines, answers = [], None
    for name, side in sides.items():
        line: dict[str, Any] = {"rows": rows, "context": context, "bound": bound, "config": name}
        try:
            line["us"], outs = side()
            answers = answers or [out.float() for out in outs]
            line["agrees"] = all(
                ((out.float() - a).norm() / a.norm()).item() < AGREES for out, a in zip(outs, answers)
            )
            line["gb_s"] = read_bytes / line["us"] / 1e3
            found = f"{line['us']:8.2f} us {line['gb_s']:6.0f} GB/s" + " WRONG" * (not line["agrees"])
        except (ImportError, RuntimeError) as error:  # not installed; too much shared memory
            line["error"] = (str(error).splitlines() or [type(error).__name__])[0]
            found = line["error"]
        lines.append(line)
        print(f"{rows:4} x {context:5} ({bound:5})  {name:20} {found}", flush=True)
    return lines


def _links(rows: int, context: int, bound: int) -> list[tuple[Any, ...]]:
    """Arguments of the links: own query, caches and tables."""
    width, blocks_of_row = math.ceil(bound / BLOCK), math.ceil(context / BLOCK)
    blocks = rows * blocks_of_row + 1
    cache_bytes = 2 * 2 * blocks * BLOCK * KV_HEADS * HEAD_DIM
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    count = min(MOST_LINKS, max(FEWEST_LINKS, math.ceil(CACHES * l2_bytes / cache_bytes)))
    on = {"device": "cuda", "dtype": torch.bfloat16}
    links = []
    # FlashInfer's plan holds one table: all links have its values, at places of their own.
    table = torch.zeros(rows, width, dtype=torch.int32, device="cuda")
    table[:, :blocks_of_row] = (torch.randperm(blocks - 1, device="cuda") + 1).view(rows, -1)
    lengths = torch.full((rows,), context, dtype=torch.int32, device="cuda")
    for _ in range(count):
        query = torch.randn(rows, HEADS, HEAD_DIM, **on)
        caches = [torch.randn(blocks, BLOCK, KV_HEADS, HEAD_DIM, **on) for _ in "kv"]
        links.append((query, *caches, lengths.clone(), table.clone(), HEAD_DIM**-0.5, 0, bound))
    return links


def _triton(config: Config, links: list[tuple[Any, ...]]) -> tuple[float, list[Tensor]]:
    module = importlib.import_module("fastkernels.kernels.decode_attention.triton")
    changed = {"TILE_BYTES": config.tile_bytes, "WARPS": config.warps}
    changed |= dict.fromkeys(("STAGES", "DEEP_STAGES"), config.stages)
    if config.splits is not None:
        changed["split_shape"] = lambda *_: config.splits
    before = {name: getattr(module, name) for name in changed}
    try:
        for name, value in changed.items():
            if value is not None:
                setattr(module, name, value)
        return _timed(module.decode_attention, links)
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _flashinfer(links: list[tuple[Any, ...]]) -> tuple[float, list[Tensor]]:
    from fastkernels.kernels.plans import plan_scope

    module = importlib.import_module("fastkernels.kernels.decode_attention.flashinfer")
    lengths, table = links[0][3:5]
    planned = [(*link[:3], lengths, table, *link[5:]) for link in links]
    with plan_scope(frozen=True):
        return _timed(module.decode_attention, planned)


def _timed(call: Callable[..., Tensor], links: list[tuple[Any, ...]]) -> tuple[float, list[Tensor]]:
    """Median microseconds of a link, and the results of the last replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(*links[0])  # compiles, plans, makes what a capture cannot make
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [call(*link) for link in links]
    return median_us(graph.replay, REPLAYS, WARM_UPS) / len(links), [out.clone() for out in outs]


if __name__ == "__main__":
    main()
