"""Whether the `graph` contract reads what Nsight Compute reads, for ten kernels. Needs CUDA and `ncu`.

    python benchmarks/ncu_agreement.py --out benchmarks/h200/ncu_agreement.json

Medians of the baseline in `fk kernels --self-test`: graph_us of one captured call, from a cold L2, as Nsight
Compute profiles it; chain_us of the chain of such calls that `fk` reports, divided by their number. The clock
is held to Nsight's by the first. A chain reads less for short calls, whose code is warm in it, and more for
those that write much, since what lies in the L2 at the end of one must leave it in the next. ncu_us is the
sum of `gpu__time_duration` over the kernels of one call in a process of its own, with clocks left alone and
after the read that evicts the L2 before a graph, too. ncu_emptied_us: where Nsight Compute empties the caches
itself, as it does unless told otherwise: no line of others must leave, and addresses are translated already.
`--calls` is this program's own: all calls, under the profiler.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from fastkernels.records import Case
    from fastkernels.registry.schema import TaskEntry

CASES = {
    "L1/rms_norm": ["llama-8b-T8-D4096-bf16", "llama-8b-T512-D4096-bf16", "llama-8b-T8192-D4096-bf16"],
    "L1/glu": ["llama-8b-T512-N28672-bf16", "llama-8b-T8192-N28672-bf16"],
    "L1/rope": ["llama-8b-T2048-K128-bf16"],
    "L1/embedding": ["llama-8b-T2048-V128256-D4096-bf16"],
    "L1/kv_cache": ["llama-8b-T2048-JK8x128-bf16"],
    "L1/linear": ["llama-8b-T1-K4096-N6144-bf16", "llama-8b-T2048-K4096-N6144-bf16"],
}
NCU = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv"]
NCU += ["--metrics", "gpu__time_duration.sum", "--cache-control"]
CALLS = 5  # of each case; the median counts
SEED = 20
SEPARATOR, SEPARATOR_CYCLES = "spin_kernel", 1000  # torch.cuda._sleep: profiled behind each case's calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calls:
        _calls()
        return
    report = _report()
    text = json.dumps(report, indent=1) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def _cases() -> list[tuple[TaskEntry, Case]]:
    from fastkernels import registry

    return [
        (registry.task(task), case)
        for task, names in CASES.items()
        for case in registry.cases(task, "full")
        if case.id in names
    ]


def _report() -> dict[str, Any]:
    from fastkernels.measure.chain import ChainPlan
    from fastkernels.measure.environment import environment

    chained, profiled, emptied = _graph_us(), _ncu_us("none"), _ncu_us("all")
    # Of single short calls no ratio is known to 5 %; their medians are all that is asked for.
    single = patch("fastkernels.runner.trial.chain_plan", lambda **_: ChainPlan())
    with single, patch("fastkernels.measure.stats.UNSTABLE_HALF_WIDTH", 1.0):
        graph = _graph_us()
    rows = []
    for entry, case in _cases():
        graph_us, ncu_us = graph[entry.id, case.id], profiled[entry.id, case.id]
        limit_us = max(0.05 * ncu_us, 0.5 if ncu_us < 5 else 0.0)
        agrees = abs(graph_us - ncu_us) <= limit_us
        read = {
            "graph_us": graph_us,
            "chain_us": chained[entry.id, case.id],
            "ncu_us": ncu_us,
            "ncu_emptied_us": emptied[entry.id, case.id],
        }
        rows.append({"kernel": f"{entry.id} {case.id}", **read, "agrees": agrees})
    return {"kind": "ncu-agreement", "rows": rows, "environment": environment("cuda").model_dump()}


def _graph_us() -> dict[tuple[str, str], float]:
    from fastkernels.runner.kernels import run_kernels
    from fastkernels.runner.plan import SELF_TEST, Job, KernelsRequest, Work

    request = KernelsRequest(self_test=True, device="cuda", size="full")
    job = Job(SELF_TEST, works=[Work(entry, case) for entry, case in _cases()])
    report = run_kernels(request, jobs=[job])
    failed = [f"{row.task} {row.case}: {row.verdict} {row.failure}" for row in report.rows if not row.speedup]
    if failed:
        raise SystemExit("\n".join(failed))
    return {(row.task, row.case): row.baseline_us for row in report.rows if row.baseline_us is not None}


def _ncu_us(cache_control: str) -> dict[tuple[str, str], float]:
    done = subprocess.run(
        [*NCU, cache_control, sys.executable, __file__, "--calls"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    found = [durations_us for durations_us in split(lines) if durations_us]
    if done.returncode or len(found) != len(_cases()):
        raise SystemExit(f"ncu profiled {len(found)} of {len(_cases())} cases:\n{done.stdout}\n{done.stderr}")
    return {(entry.id, case.id): of_one_call(durations) for (entry, case), durations in zip(_cases(), found)}


def split(lines: list[str]) -> list[list[float]]:
    """Durations of the kernels of each case, in us and in order, from ncu's CSV."""
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    cases: list[list[float]] = [[]]
    for record in csv.DictReader(io.StringIO("\n".join(lines))):
        if record["Metric Name"] != "gpu__time_duration.sum":
            continue
        if SEPARATOR in record["Kernel Name"]:
            cases.append([])
            continue
        cases[-1].append(float(record["Metric Value"].replace(",", "")) * scale[record["Metric Unit"]])
    return cases


def of_one_call(durations_us: list[float]) -> float:
    """The median call of CALLS equal ones."""
    kernels = len(durations_us) // CALLS
    return statistics.median(
        sum(durations_us[first : first + kernels]) for first in range(0, kernels * CALLS, kernels)
    )


def _calls() -> None:
    import torch
    from torch.cuda import profiler

    from fastkernels.loader.inputs import draw, trial_specs
    from fastkernels.loader.materialize import bind, build_module
    from fastkernels.loader.overlay import Overlay
    from fastkernels.measure.cold import L2Flush
    from fastkernels.measure.cuda import Driver

    overlay = Overlay.over_baseline()
    flush = L2Flush(Driver(), torch.cuda.Stream())
    for _, case in _cases():
        module = build_module(overlay, case, "cuda")
        call = bind(module, case, draw(trial_specs(case, module), case, SEED, device="cuda"))
        with torch.inference_mode(), call.ambient():
            for _ in range(3):
                call.run()
            for number in range(CALLS):
                flush()
                torch.cuda.synchronize()
                profiler.start()
                call.run()
                if number == CALLS - 1:
                    torch.cuda._sleep(SEPARATOR_CYCLES)
                torch.cuda.synchronize()
                profiler.stop()


if __name__ == "__main__":
    main()
