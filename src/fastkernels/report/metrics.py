"""A report as a few numbers, for MLflow's page: tens, however many cases there are. The report itself, an
artifact of its run, has the rest.

    summary/speedup      of the whole run: geometric means, counts, seconds
    L1/rms_norm/speedup  of a task; of all tasks of a level where there are many; behind the candidate's name
                         where there are several
    llama/speedup        of a model; of a category where there are many
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from fastkernels.gate.verdicts import middle
from fastkernels.measure.stats import geomean
from fastkernels.records import EvalReport, GateReport, GateRow, KernelReport, KernelRow, primary

Metrics = dict[str, float | None]
MOST_GROUPS = 12
_OF_A_MODEL = ("speedup", "throughput_speedup", "latency_speedup", "correctness")
_OF_A_SCORE = ("score", "speedup", "correctness", "coverage")
Row = TypeVar("Row", KernelRow, GateRow)


def metrics(report: KernelReport | EvalReport | GateReport) -> dict[str, float]:
    """By name, without those that the run has not."""
    if isinstance(report, EvalReport):
        found = _of_eval(report)
    else:
        found = _of_gate(report) if isinstance(report, GateReport) else _of_kernels(report)
    return {name: value for name, value in found.items() if value is not None}


def _of_kernels(report: KernelReport) -> Metrics:
    summary = report.summary
    found: Metrics = {f"summary/{name}": getattr(summary, name) for name in ("passed", "failed", "unstable")}
    found |= {"summary/speedup": summary.geomean_speedup, "summary/wall_s": summary.wall_s}
    contract = primary(row.contract for row in report.rows)
    for group, rows in _groups(report.rows).items():
        timed = [(row.speedup, row.calls) for row in rows if row.contract == contract]
        found[f"{group}/speedup"] = _mean(timed)
        found[f"{group}/passed_pct"] = 100 * sum(row.verdict == "PASSED" for row in rows) / len(rows)
        found[f"{group}/noise_pct"] = max((row.noise_pct for row in rows if row.noise_pct), default=None)
    return found


def _of_gate(report: GateReport) -> Metrics:
    found: Metrics = {f"summary/{verdict}": float(n) for verdict, n in report.summary.verdicts.items()}
    found["summary/speedup"] = report.summary.geomean_speedup
    contract = primary(row.contract for row in report.rows)
    for group, rows in _groups(report.rows).items():
        seen = [row for row in rows if row.looks and row.contract == contract]
        found[f"{group}/speedup"] = _mean([(middle(row.looks).speedup, row.calls) for row in seen])
    return found


def _mean(speedups: Sequence[tuple[float | None, int]]) -> float | None:
    """Of those that there are, weighted by calls."""
    timed = [(speedup, calls) for speedup, calls in speedups if speedup is not None]
    return geomean(*([*of] for of in zip(*timed))) if timed else None


def _of_eval(report: EvalReport) -> Metrics:
    found: Metrics = {"summary/valid": float(sum(model.valid for model in report.models))}
    if report.macroeval is not None:
        found |= {f"summary/{name}": getattr(report.macroeval, name) for name in _OF_A_SCORE}
    if len(report.models) <= MOST_GROUPS:
        for model in report.models:
            found |= {f"{model.model}/{name}": getattr(model, name) for name in _OF_A_MODEL}
            found[f"{model.model}/transfer"] = model.swap.transfer
    elif report.macroeval is not None:
        for category, of_it in report.macroeval.by_category.items():
            found |= {f"{category}/{name}": value for name, value in of_it.items()}
    return found


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by task, or where those are too many by level, or by candidate alone; none of too many
    candidates."""
    several = len({row.candidate for row in rows}) > 1
    places: tuple[Callable[[Row], str], ...] = (lambda r: r.task, lambda r: r.task[:2], lambda r: "all")
    for place in places:
        found: defaultdict[str, list[Row]] = defaultdict(list)
        for row in rows:
            found[f"{row.candidate}/{place(row)}" if several else place(row)].append(row)
        if len(found) <= MOST_GROUPS:
            return found
    return {}
