"""Our engine and vLLM on one machine, one after the other: the same prompts and lengths, random weights.

    python benchmarks/vs_vllm.py --out benchmarks/h200/vs_vllm_llama.json [--vllm-path ~/site-vllm]
    python benchmarks/vs_vllm.py --workloads balanced --out a.json
    python benchmarks/vs_vllm.py --architecture gpt_oss --out benchmarks/h200/vs_vllm_gpt_oss.json
    python benchmarks/vs_vllm.py --cut-off --out a.json         of what a run that was cut off left beside it

Each engine runs in a process of its own, through its public `LLM`: bf16, greedy, exact output lengths, no
prefix cache, 0.9 of the memory. Latency is the median of 5 runs after 1, but the fastest of both sides where
the runs of one differ by half: an engine that compiles in between is not slow for it. `by` says which.
Throughput is one run of all requests: the first workload's after one of as many others, which uses every
number of rows that the later ones use; theirs after one of 64 requests. A ratio above 1 is ours.

`--vllm-path` is the folder with vLLM's packages, where it is not installed beside ours. `--side` is this
program's own.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from comparison import each_side, finish, timed, write
from references.base import Machine
from references.language import Ours, Prompts, count
from references.vllm_lm import MAX_MODEL_LEN, Vllm

# The short ones first: of a run that is cut off, most is there.
WORKLOADS = {
    "single-request": (1, 128, 128),
    "fixed-batch-32": (32, 128, 128),
    "balanced": (1000, 512, 512),
    "prefill-heavy": (1000, 1024, 512),
    "decode-heavy": (1000, 512, 1024),
}
LATENCY = ("single-request", "fixed-batch-32")
LATENCY_RUNS, THROUGHPUT_RUNS = 5, 1
LATER_WARM_UP = 64  # requests, of a throughput workload that is not the first
STATISTICS = {"median": statistics.median, "fastest": min}
MOST_SPREAD = 1.5
SEED = 20
STEPS_WATCHED = 64  # tokens of the request between whose decode steps the gaps are measured

Generate = Callable[[Prompts, int], Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="llama", help="of its full default configuration")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--vllm-path", type=Path)
    parser.add_argument("--sides", default="fastkernels,vllm", help="one of them alone gives no ratios")
    parser.add_argument("--cut-off", action="store_true", help="from what the sides left beside --out")
    parser.add_argument("--side", choices=["fastkernels", "vllm"], help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.workloads.split(",")
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if arguments.side:
        _one_side(arguments.architecture, arguments.side, names, arguments.result)
        return
    both = ["--architecture", arguments.architecture, "--workloads", ",".join(names)]
    sides = each_side(
        __file__,
        dict.fromkeys(arguments.sides.split(","), both),
        arguments.out,
        {"vllm": arguments.vllm_path},
        arguments.cut_off,
    )
    names = [name for name in names if all(name in found["workloads"] for found in sides.values())]
    report = _report(arguments.architecture, sides, names) | {"cut_off": arguments.cut_off}
    write(report, arguments.out, sides)


def _report(architecture: str, sides: dict[str, dict], names: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "kind": "vs_reference",
        "architecture": architecture,
        "reference": "vllm",
        "size": "full",
        "ratios": {},
        "start_s": {side: found["start_s"] for side, found in sides.items()},
        "idle_us_batch1": sides.get("fastkernels", {}).get("idle_us_batch1"),
        "workloads": {
            name: {side: found["workloads"][name] for side, found in sides.items()} for name in names
        },
        "engines": {side: found["version"] for side, found in sides.items()},
        "environment": _environment(),
    }
    if len(sides) == 2:
        both = [sides[side]["workloads"] for side in ("fastkernels", "vllm")]
        report["by"] = {name: _statistic(*(found[name]["all_seconds"] for found in both)) for name in names}
        for name in names:
            ours, theirs = (STATISTICS[report["by"][name]](found[name]["all_seconds"]) for found in both)
            report["ratios"][name] = theirs / ours
    return report


def _statistic(*sides: list[float]) -> str:
    return "fastest" if any(max(runs) > MOST_SPREAD * min(runs) for runs in sides) else "median"


def _environment() -> dict[str, Any]:
    from fastkernels.measure.environment import environment

    return environment("cuda").model_dump()


# ---------------------------------------------------------------- one side


def _one_side(architecture: str, side: str, names: list[str], result: Path) -> None:
    """Writes what it has so far behind every workload."""
    begin = time.perf_counter()
    machine = Machine(architecture, "full", "cuda")
    engine = Ours(machine, max_model_len=MAX_MODEL_LEN) if side == "fastkernels" else Vllm(machine)
    rng = random.Random(SEED)

    def prompts(count: int, length: int) -> Prompts:
        return [[rng.randrange(engine.vocabulary) for _ in range(length)] for _ in range(count)]

    engine.generate(prompts(1, 16), 1)
    start_s = time.perf_counter() - begin
    engine.generate(prompts(8, 64), 16)
    found: dict[str, Any] = {"start_s": start_s, "workloads": {}, "version": engine.version}
    if side == "fastkernels" and "single-request" in names:
        found["idle_us_batch1"] = _gap_us(lambda: engine.generate(prompts(1, 128), STEPS_WATCHED))
    first = next((name for name in names if name not in LATENCY), None)
    for name in names:
        warm_up = LATER_WARM_UP if name not in (*LATENCY, first) else None
        found["workloads"][name] = _run(engine.generate, prompts, name, warm_up)
        finish(result, found)


def _run(
    generate: Generate, prompts: Callable[[int, int], Prompts], name: str, warm_up: int | None = None
) -> dict[str, Any]:
    """warm_up: requests of the run that is not counted; as many as are counted if None."""
    requests, input_len, output_len = WORKLOADS[name]
    runs = LATENCY_RUNS if name in LATENCY else THROUGHPUT_RUNS
    batches = [prompts(requests, input_len) for _ in range(runs)]
    batches.append(prompts(warm_up or requests, input_len))
    made, figures = timed(lambda: count(generate(batches.pop(), output_len)), warm_ups=1, runs=runs)
    assert made == requests * output_len, f"{name}: {made} tokens, not {requests * output_len}"
    rate = made / figures["seconds"]
    print(f"{name}: {figures['seconds']:.3f} s, {rate:.0f} out tok/s", file=sys.stderr, flush=True)
    return {**figures, "output_tokens_per_s": rate}


def _gap_us(run: Callable[[], Any]) -> float:
    """Median time on the device between two decode steps, from the end of one replayed graph to the beginning
    of the next: events on the stream, because a profiler slows the launches down."""
    import torch

    replay = torch.cuda.CUDAGraph.replay
    spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def watched(graph: torch.cuda.CUDAGraph) -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay(graph)
        end.record()
        spans.append((begin, end))

    run()
    with mock.patch.object(torch.cuda.CUDAGraph, "replay", watched):
        run()
    torch.cuda.synchronize()
    decodes = spans[-(STEPS_WATCHED - 1) :]  # before them the pieces of the prompt's step
    return statistics.median(1e3 * a[1].elapsed_time(b[0]) for a, b in itertools.pairwise(decodes))


if __name__ == "__main__":
    main()
