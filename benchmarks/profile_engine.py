"""Where the device time of our engine goes: kernels by their share, and the time between them.

    python benchmarks/profile_engine.py llama --runs 1x128/128 32x128/64 256x1024/32 --out profile.json

A run is `requests x prompt / output` tokens, greedy, random weights: once to capture graphs, once timed
without the profiler, once under it. `idle_s` is wall time in which no kernel of the profiled run was under
way; `steps` are the engine's own counters of the timed run.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from comparison import write
from references.base import Machine
from references.language import Ours, workload

NAME_LENGTH = 90
MOST_KERNELS = 25


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("architecture")
    parser.add_argument("--runs", nargs="+", default=["1x128/64", "32x128/64"])
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--size", choices=["tiny", "full"], default="full")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from fastkernels.measure.environment import environment

    begin = time.perf_counter()
    machine = Machine(arguments.architecture, arguments.size, "cuda")
    ours = Ours(machine, max_model_len=arguments.max_model_len)
    start_s = time.perf_counter() - begin
    runs, kernels = [], []
    for text in arguments.runs:
        figures, found = _profiled(ours, text, machine)
        runs.append({"run": text, **figures})
        kernels += [{"run": text, **kernel} for kernel in found]
        print(runs[-1], flush=True)
        for one in found:
            line = f"{one['share_pct']:5.1f} % {one['calls']:7} x {one['mean_us']:9.2f} us  {one['name']}"
            print(line, flush=True)
    report = {"kind": "profile", "architecture": arguments.architecture, "start_s": start_s}
    report |= {"runs": runs, "kernels": kernels}
    write({**report, "environment": environment("cuda").model_dump()}, arguments.out)


def _profiled(ours: Ours, text: str, machine: Machine) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures of a run, and its kernels."""
    from torch.profiler import ProfilerActivity, profile

    requests, lengths = text.split("x")
    prompt, output = map(int, lengths.split("/"))
    run = ours.prepare(workload("profiled", int(requests), prompt, output, "full"), "engine")
    run()
    ours.llm.runner.forget_counts()
    begin = time.perf_counter()
    tokens = run()
    machine.wait()
    seconds, stats = time.perf_counter() - begin, ours.llm.stats()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        machine.wait()
    spans = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in seen.events() or []
        if str(event.device_type).endswith("CUDA")
    ]
    busy, kernels = _summary(spans)
    counted = {key: stats[key] for key in ("steps", "graph_replays", "eager_steps", "preemptions")}
    return {"seconds": seconds, "output_tokens_per_s": tokens / seconds, **counted, **busy}, kernels


def _summary(spans: list[tuple[str, float, float]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Seconds in all, and the kernels by their share, of spans in microseconds."""
    spans.sort(key=lambda span: span[1])
    idle, busy_until, by_name = 0.0, spans[0][1], defaultdict(list)
    for name, start, end in spans:
        idle += max(0.0, start - busy_until)
        busy_until = max(busy_until, end)
        by_name[name].append(end - start)
    total = sum(sum(durations) for durations in by_name.values())
    kernels = [
        {
            "name": name[:NAME_LENGTH],
            "calls": len(durations),
            "mean_us": sum(durations) / len(durations),
            "share_pct": 100 * sum(durations) / total,
        }
        for name, durations in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:MOST_KERNELS]
    ]
    found_s = {"profiled_s": busy_until - spans[0][1], "busy_s": total, "idle_s": idle}
    return {name: us / 1e6 for name, us in found_s.items()}, kernels


if __name__ == "__main__":
    main()
