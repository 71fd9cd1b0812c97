"""Times of a whole decode step by constants of its kernels: what a tile is worth beside all the others.

python benchmarks/decode_step.py llama --rows 32 --try "4096x4096 ahead=16" "attention DEEP_STAGES=3" \\
    "4096x4096 ahead=16; attention DEEP_STAGES=3" "use decode_attention=triton"

A change names the weight `outputs x inputs` of a skinny product and fields of its Tile (kernels/skinny.py),
or `attention` and constants of decode_attention/triton.py, or `use` and implementations of kernels; one
variant holds several, apart by `;`. For each,
the engine captures its graphs anew, serves --rows requests of --prompt tokens, and replays the graph of their
last step: the time is that of --replays of them back to back. The unchanged step is timed first, last, and in
between, so that a drift of the machine shows.
"""

from __future__ import annotations

import argparse
import importlib
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from committed import write
from references.base import Machine
from references.language import Ours, prompts, workload

from fastkernels import kernels
from fastkernels.engine.core.sampler import Variant
from fastkernels.kernels import skinny
from fastkernels.measure.environment import environment

ATTENTION = "fastkernels.kernels.decode_attention.triton"
UNCHANGED_EVERY = 5  # variants
OUTPUT, WARM_UPS = 64, 10
SETTING = re.compile(r"\w+=\w+")

Change = tuple[str, dict[str, Any]]  # what, and its constants or implementations

kept: list[Any] = []


def parsed(text: str) -> list[Change]:
    """The changes of a variant; ValueError where the text is none."""
    changes = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        what, *settings = part.split()
        if not re.fullmatch(r"use|attention|\d+x\d+", what) or not all(map(SETTING.fullmatch, settings)):
            raise ValueError(f"{part!r} is no change")
        pairs = dict(setting.split("=") for setting in settings)
        changes.append((what, pairs if what == "use" else {name: int(pairs[name]) for name in pairs}))
    return changes


def changed(changes: list[Change]) -> ExitStack:
    """The constants and choices as they are to be, until the stack is closed."""
    stack, tile_of = ExitStack(), skinny.tile_of
    tiles = {tuple(map(int, what.split("x"))): fields for what, fields in changes if "x" in what}

    def tile(rows: int, inputs: int, outputs: int, processors: int) -> skinny.Tile:
        return tile_of(rows, inputs, outputs, processors)._replace(**tiles.get((outputs, inputs), {}))

    stack.enter_context(mock.patch.object(skinny, "tile_of", tile))
    for what, constants in changes:
        if what == "use":
            stack.enter_context(kernels.use(**constants))
        elif what == "attention":
            for name, value in constants.items():
                stack.enter_context(mock.patch.object(importlib.import_module(ATTENTION), name, value))
    return stack


def step_us(ours: Ours, rows: int, prompt: int, replays: int) -> float:
    """Of the last decode step of `rows` requests, in a graph captured now."""
    graphs = ours.llm.runner.graphs
    # Earlier graphs live on: a pool of graphs ends with the last of them, and nothing more is captured in it.
    kept.append(graphs.captures)
    graphs.captures = type(graphs.captures)()
    given = prompts(workload("step", rows, prompt, OUTPUT, "full"), ours.vocabulary)
    ours.generate(given, OUTPUT)
    captured, why = graphs.get(ours.llm.runner, rows, prompt + OUTPUT, Variant())
    if captured is None:
        raise RuntimeError(why)
    for _ in range(WARM_UPS):
        captured.graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(replays):
        captured.graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / replays


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("architecture")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--replays", type=int, default=60)
    parser.add_argument("--try", dest="variants", nargs="+", default=[], metavar="CHANGES")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    try:
        variants = [(text, parsed(text)) for text in arguments.variants]
    except ValueError as error:
        parser.error(f"{error}; write e.g. '4096x4096 ahead=16; attention DEEP_STAGES=3'")
    order: list[tuple[str, list[Change]]] = []
    for at, variant in enumerate(variants):
        order += [("unchanged", [])] * (at % UNCHANGED_EVERY == 0) + [variant]
    order.append(("unchanged", []))
    ours = Ours(Machine(arguments.architecture, "full", "cuda"), max_model_len=2048)
    found = []
    for text, changes in order:
        try:
            with changed(changes):
                us = step_us(ours, arguments.rows, arguments.prompt, arguments.replays)
        except Exception as error:  # a tile that does not compile: the next one may
            print(f"   refused  {text}: {type(error).__name__}: {str(error)[:100]}", flush=True)
            continue
        found.append({"changes": text, "us": us})
        print(f"{us:9.1f} us  {text}", flush=True)
        if arguments.out:
            report = {"kind": "decode-step-sweep", "rows": arguments.rows, "prompt": arguments.prompt}
            report |= {"found": found, "environment": environment("cuda").model_dump()}
            write(report, arguments.out)


if __name__ == "__main__":
    main()
