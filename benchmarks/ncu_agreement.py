"""Whether the `graph` contract reads what Nsight Compute reads, for ten kernels. Needs CUDA and `ncu`.

    python benchmarks/ncu_agreement.py --out benchmarks/h200/ncu_agreement.json

graph_us is what `fk kernels --self-test` reports of the baseline: a captured chain of calls, divided by their
number, each with inputs and parameters of its own, so that memory is cold and code is warm. ncu_us is
`gpu__time_duration` of such calls: up to LINKS of them one after another, each with tensors of its own, from
an evicted L2, each profiled (the sum over its kernels), the median counts; with clocks and caches left alone.

Beside them stands one call alone, which `fk` times where a chain has one link: single_us as captured,
ncu_single_us as profiled, both from an evicted L2, where the kernel's code is cold, too. in_order_us is a
chain of this program's own whose kernels begin when the one before has ended, as they do under the profiler,
and not while it ends (kernels/overlap.py). No criteria: what two events read beyond the kernel differs by
machine, and a model's kernels overlap (docs/record/measured.md).

`--calls` is this program's own: the calls, under the profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from committed import written

if TYPE_CHECKING:
    import torch

    from fastkernels.loader.materialize import Call
    from fastkernels.measure.cold import L2Flush
    from fastkernels.records import Case
    from fastkernels.records.kernels import KernelRow
    from fastkernels.registry.schema import TaskEntry

CASES = {
    "L1/rms_norm": ["llama-8b-T32-D4096-bf16", "llama-8b-T512-D4096-bf16", "llama-8b-T8192-D4096-bf16"],
    "L1/glu": ["llama-8b-T512-N28672-bf16", "llama-8b-T8192-N28672-bf16"],
    "L1/rope": ["llama-8b-T8192-K128-bf16"],
    "L1/embedding": ["llama-8b-T8192-V128256-D4096-bf16"],
    "L1/kv_cache": ["llama-8b-T8192-JK8x128-bf16"],
    "L1/linear": ["llama-8b-T32-K4096-N6144-bf16", "llama-8b-T8192-K4096-N6144-bf16"],
}
NCU = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv"]
NCU += ["--metrics", "gpu__time_duration.sum", "--cache-control", "none"]
LINKS = 16  # of a chain's at most: profiling takes long
SINGLE_CALLS = 5
REPLAYS = 15
OVERLAPPING = ("overlap", "gemv")  # modules that ask whether kernels may overlap
SHARED_BYTES = 8 << 30  # parameters of a case's links that would take more are one link's
SEED = 20
SEPARATOR, SEPARATOR_CYCLES = "spin_kernel", 1000  # torch.cuda._sleep: profiled behind each series


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--calls", type=json.loads, metavar="LINKS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calls:
        _calls(arguments.calls)
        return
    report = _report()
    text = written(report)
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

    chained = _graph_rows()
    # Of single short calls no ratio is known to 5 %; their medians are all that is asked for.
    single = patch("fastkernels.runner.kernel_trial.trial.chain_plan", lambda **_: ChainPlan())
    with single, patch("fastkernels.measure.stats.UNSTABLE_HALF_WIDTH", 1.0):
        alone = _graph_rows()
    profiled = _ncu_us([min(LINKS, row.links) for row in chained])
    in_order = _in_order_us([row.links for row in chained])
    rows = []
    for row, single_row, (ncu_us, ncu_single_us), in_order_us in zip(
        chained, alone, profiled, in_order, strict=True
    ):
        rows.append(
            {
                "kernel": f"{row.task} {row.case}",
                "links": row.links,
                "graph_us": row.baseline_us,
                "ncu_us": ncu_us,
                "agrees": agree(row.baseline_us, ncu_us),
                "single_us": single_row.baseline_us,
                "ncu_single_us": ncu_single_us,
                "in_order_us": in_order_us,
            }
        )
    return {"kind": "ncu-agreement", "rows": rows, "environment": environment("cuda").model_dump()}


def agree(graph_us: float, ncu_us: float) -> bool:
    """Within 5 %, or within 0.5 us below 5 us."""
    return abs(graph_us - ncu_us) <= (0.5 if ncu_us < 5 else 0.05 * ncu_us)


def _graph_rows() -> list[KernelRow]:
    """In the order of `_cases`."""
    from fastkernels.runner.kernel_trial.request import SELF_TEST, Job, KernelsRequest, Work
    from fastkernels.runner.kernel_trial.run import run_kernels

    request = KernelsRequest(self_test=True, device="cuda", size="full")
    job = Job(SELF_TEST, works=[Work(entry, case) for entry, case in _cases()])
    report = run_kernels(request, jobs=[job])
    failed = [f"{row.task} {row.case}: {row.verdict} {row.failure}" for row in report.rows if not row.speedup]
    if failed:
        raise SystemExit("\n".join(failed))
    found = {(row.task, row.case): row for row in report.rows}
    return [found[entry.id, case.id] for entry, case in _cases()]


def _in_order_us(links: list[int]) -> list[float]:
    """Of each case: a call of a captured chain from an evicted L2, no kernel of which begins early."""
    import torch

    from fastkernels.measure.cold import L2Flush
    from fastkernels.measure.cuda import Driver

    stream = torch.cuda.Stream()
    flush, found = L2Flush(Driver(), stream), []
    alone = [patch(f"fastkernels.kernels.{name}.overlapping", lambda device: False) for name in OVERLAPPING]
    with contextlib.ExitStack() as patched, torch.inference_mode(), torch.cuda.stream(stream):
        for one in alone:
            patched.enter_context(one)
        for (_, case), number in zip(_cases(), links, strict=True):
            calls = _bound(case, number)
            graph = torch.cuda.CUDAGraph()
            _run(calls)
            with torch.cuda.graph(graph, stream=stream):
                _run(calls)
            found.append(statistics.median(_replayed_us(graph, flush) for _ in range(REPLAYS)) / number)
    return found


def _replayed_us(graph: torch.cuda.CUDAGraph, flush: L2Flush) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end)


def _ncu_us(links: list[int]) -> list[tuple[float, float]]:
    """Of each case: a call of its chain, and one alone."""
    done = subprocess.run(
        [*NCU, sys.executable, __file__, "--calls", json.dumps(links)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    found = [durations_us for durations_us in split(lines) if durations_us]
    if done.returncode or len(found) != 2 * len(links):
        raise SystemExit(
            f"ncu profiled {len(found)} of {2 * len(links)} series:\n{done.stdout}\n{done.stderr}"
        )
    in_chain, alone = found[::2], found[1::2]
    return [
        (of_one_call(several, calls), of_one_call(single, SINGLE_CALLS))
        for several, single, calls in zip(in_chain, alone, links)
    ]


def split(lines: list[str]) -> list[list[float]]:
    """Durations of the kernels of each series of calls, in us and in order, from ncu's CSV."""
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    series: list[list[float]] = [[]]
    for record in csv.DictReader(io.StringIO("\n".join(lines))):
        if record["Metric Name"] != "gpu__time_duration.sum":
            continue
        if SEPARATOR in record["Kernel Name"]:
            series.append([])
            continue
        series[-1].append(float(record["Metric Value"].replace(",", "")) * scale[record["Metric Unit"]])
    return series


def of_one_call(durations_us: list[float], calls: int) -> float:
    """The median of `calls` calls with as many kernels each."""
    kernels, rest = divmod(len(durations_us), calls)
    if rest:
        raise SystemExit(f"{len(durations_us)} kernels in {calls} calls: a call has not always the same ones")
    return statistics.median(
        sum(durations_us[first : first + kernels]) for first in range(0, len(durations_us), kernels)
    )


def _calls(links: list[int]) -> None:
    import torch

    from fastkernels.measure.cold import L2Flush
    from fastkernels.measure.cuda import Driver

    flush = L2Flush(Driver(), torch.cuda.Stream())
    for (_, case), number in zip(_cases(), links, strict=True):
        calls = _bound(case, number)
        with torch.inference_mode():
            _run(calls)
            flush()
            _profiled(calls)
            for turn in range(SINGLE_CALLS):
                flush()
                _profiled(calls[:1], last=turn == SINGLE_CALLS - 1)


def _bound(case: Case, number: int) -> list[Call]:
    """Calls of a case, each with its own module and inputs."""
    from fastkernels.loader.inputs import draw, trial_specs
    from fastkernels.loader.materialize import bind, build_module
    from fastkernels.loader.overlay import Overlay

    overlay = Overlay.over_baseline()
    modules = [build_module(overlay, case, "cuda")]
    size = sum(parameter.nbytes for parameter in modules[0].parameters())
    for _ in range(number - 1):
        modules.append(modules[0] if number * size > SHARED_BYTES else build_module(overlay, case, "cuda"))
    specs = trial_specs(case, modules[0])
    return [
        bind(module, case, draw(specs, case, SEED + index, device="cuda"))
        for index, module in enumerate(modules)
    ]


def _run(calls: list[Call]) -> None:
    for call in calls:
        with call.ambient():
            call.run()


def _profiled(calls: list[Call], last: bool = True) -> None:
    """`last`: a series ends here."""
    import torch
    from torch.cuda import profiler

    torch.cuda.synchronize()
    profiler.start()
    _run(calls)
    if last:
        torch.cuda._sleep(SEPARATOR_CYCLES)
    torch.cuda.synchronize()
    profiler.stop()


if __name__ == "__main__":
    main()
