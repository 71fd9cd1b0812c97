"""Where the time of our engine goes: kernels by their share of the device's, the time between them, and what
the host does.

    python benchmarks/profile_engine.py llama --runs 1x128/128 32x128/64 256x1024/32 --out profile.json
    python benchmarks/profile_engine.py siglip2 --runs single-image default-res

A run of a language model is `requests x prompt / output` tokens, greedy; of any model it is a workload of
vs_reference.py by its name. Random weights; three times to compile and to capture graphs, once timed without
the profiler, once under it, and once more under Python's, for the functions in which the host was longest (a
wait for the device is one of them). `idle_s` is wall time in which no kernel of the profiled run was under
way.
"""

from __future__ import annotations

import argparse
import cProfile
import re
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comparison import write
from references import comparisons
from references.base import Machine, Side
from references.language import Ours, workload

if TYPE_CHECKING:
    from fastkernels.registry.workloads import TokenWorkload

WARM_UPS = 3
NAME_LENGTH = 90
MOST_KERNELS, MOST_FUNCTIONS = 25, 12


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("architecture")
    parser.add_argument("--runs", nargs="+", required=True)
    parser.add_argument("--max-model-len", type=int, help="of a language model")
    parser.add_argument("--size", choices=["tiny", "full"], default="full")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from fastkernels.measure.environment import environment

    begin = time.perf_counter()
    machine = Machine(arguments.architecture, arguments.size, "cuda")
    comparison = next(iter(comparisons(arguments.architecture).values()))
    workloads = comparison.workloads(arguments.size)
    for text in arguments.runs:
        if text not in workloads and not _parsed(text):
            parser.error(f"no run {text}: give requests x prompt / output, or one of {', '.join(workloads)}")
    limited = partial(Ours, max_model_len=arguments.max_model_len)
    make = limited if comparison.ours is Ours and arguments.max_model_len else comparison.ours
    ours = make(machine)
    start_s = time.perf_counter() - begin
    runs, kernels, host = [], [], []
    for text in arguments.runs:
        figures, found, functions = _profiled(ours, workloads.get(text) or _parsed(text), machine)
        runs.append({"run": text, **figures})
        kernels += [{"run": text, **kernel} for kernel in found]
        host += [{"run": text, **function} for function in functions]
        print(runs[-1], flush=True)
        for one in found:
            line = f"{one['share_pct']:5.1f} % {one['calls']:7} x {one['mean_us']:9.2f} us  {one['name']}"
            print(line, flush=True)
        for one in functions:
            print(f"host {one['ms']:9.3f} ms {one['calls']:7} x  {one['name']}", flush=True)
    report = {"kind": "profile", "architecture": arguments.architecture, "start_s": start_s}
    report |= {"runs": runs, "kernels": kernels, "host": host}
    write({**report, "environment": environment("cuda").model_dump()}, arguments.out)


def _parsed(text: str) -> TokenWorkload | None:
    """The workload of `1x128/64`; None of other text."""
    found = re.fullmatch(r"(\d+)x(\d+)/(\d+)", text)
    if found is None:
        return None
    requests, prompt, output = map(int, found.groups())
    return workload(text.replace("/", "-"), requests, prompt, output, "full")


def _profiled(
    ours: Side, given: Any, machine: Machine
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Figures of a run, its kernels, and the host's functions."""
    from torch.profiler import ProfilerActivity, profile

    run = ours.prepare(given, "engine")
    for _ in range(WARM_UPS):
        run()
    machine.wait()
    begin = time.perf_counter()
    items = run()
    machine.wait()
    seconds = time.perf_counter() - begin
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        machine.wait()
    spans = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in seen.events() or []
        if str(event.device_type).endswith("CUDA")
    ]
    busy, kernels = _summary(spans)
    figures = {"seconds": seconds, "items_per_s": items / seconds, **busy}
    return figures, kernels, _functions(run, machine)


def _functions(run: Callable[[], Any], machine: Machine) -> list[dict[str, Any]]:
    """Those with the longest time of their own, without what they call."""
    with cProfile.Profile() as seen:
        run()
        machine.wait()
    longest = sorted(seen.getstats(), key=lambda entry: -entry.inlinetime)[:MOST_FUNCTIONS]
    return [
        {"name": _name(entry.code), "calls": entry.callcount, "ms": 1e3 * entry.inlinetime}
        for entry in longest
    ]


def _name(code: Any) -> str:
    """Of Python's functions with their module, of C's as they are."""
    if isinstance(code, str):
        return code[:NAME_LENGTH]
    return f"{Path(code.co_filename).stem}.{code.co_name}"


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
