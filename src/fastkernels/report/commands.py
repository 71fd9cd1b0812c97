"""Commands that a report leads to: what shows a failure again, and what to do next. As a shell takes them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from fastkernels import registry
from fastkernels.judge.verdict import MACHINE_FAULTS
from fastkernels.records import (
    EvalReport,
    GateReport,
    GateRow,
    KernelReport,
    KernelRow,
    ModelResult,
)
from fastkernels.report.layout import task_name
from fastkernels.report.standings import standings

_FAILURES = "failures"  # the folder of --reproduce that is proposed


def of_row(report: KernelReport, row: KernelRow, reproduce: bool = True) -> str:
    """Judge this row again, on inputs of the same seed; what it gets and gives is written to a folder."""
    asked = report.request
    flags: list[Any] = ["kernels", "--target", task_name(row)]
    flags += [] if row.case == "*" else ["--case", row.case]
    if row.candidate.startswith("impl:"):
        flags.append("--providers")
    elif asked.get("self_test"):
        flags.append("--self-test")
    else:
        flags += _option("--candidates", _folders(report, row.candidate))
        flags += ["--reproduce", _FAILURES] if reproduce and row.failure is not None else []
    return _line([*flags, *_same(asked, "size", "device", "contract", "golden", "seed")])


def of_model(report: EvalReport, model: ModelResult, *more: str) -> str:
    """Evaluate this model again, with the same weights and prompts."""
    asked = report.request
    flags: list[Any] = ["eval", "--model", model.model, *_same(asked, "size", "device", "suite", "seed")]
    for workload in asked.get("workloads") or ():
        flags += ["--workload", workload]
    flags += ["--eager"] if asked.get("eager") else []
    for name in ("tp", "ep"):
        flags += _option(f"--{name}", asked[name]) if asked.get(name, 1) > 1 else []
    return _line([*flags, *_candidates(report), *more])


def of_gate(report: GateReport, row: GateRow, *more: str) -> str:
    """Hold this row's head against its base again."""
    asked = report.request
    flags = ["gate", asked.get("head", report.head), *_option("--base", asked.get("base"))]
    flags += ["--target", task_name(row), "--case", row.case, *_same(asked, "size", "device")]
    return _line([*flags, *more])


def following(report: KernelReport | EvalReport | GateReport) -> str | None:
    """The next step after a run; None where there is none to name, and after one that was interrupted."""
    if isinstance(report, KernelReport):
        return _after_kernels(report) if report.complete or report.failed_fast else None
    if not report.complete:
        return None
    return _after_eval(report) if isinstance(report, EvalReport) else _after_gate(report)


def _after_kernels(report: KernelReport) -> str | None:
    asked = report.request
    failed = [row for row in report.rows if row.verdict not in ("PASSED", "UNSUPPORTED", *MACHINE_FAULTS)]
    if failed:
        return of_row(report, failed[0])
    if asked.get("self_test") or asked.get("providers") or not report.rows:
        return None
    if unstable := [row for row in report.rows if row.verdict in MACHINE_FAULTS]:
        return f"{of_row(report, unstable[0], reproduce=False)} --budget 5"
    best = max(standings(report.rows), key=lambda one: one.mean or 0.0).candidate
    model = asked.get("architecture") or _user(report.rows[0].task)
    flags = [*_option("--model", model), *_same(asked, "size"), "--candidates", _folders(report, best)]
    return _line(["eval", *flags])


def _after_eval(report: EvalReport) -> str | None:
    if broken := [model for model in report.models if not model.valid]:
        if not report.candidates:
            return of_model(report, broken[0], "--verbose")
        reached = [f"--target={task}" for task in broken[0].swap.by_task]
        flags = [*reached, "--architecture", broken[0].model] if reached else []
        return _line(["kernels", *flags, *_candidates(report)])
    for model in report.models:
        if any(workload.unstable for workload in model.workloads):
            return of_model(report, model, "--rounds", "30")
    folder = _folder_of_files(report.candidates)
    # A gate takes one folder, and no stack of them.
    return _line(["gate", folder, "--base", "origin/main"]) if folder and ":" not in folder else None


def _after_gate(report: GateReport) -> str | None:
    budget = f"{5 * (report.request.get('budget_s') or 1.0):g}"
    for verdicts, more in (
        ({"BROKEN", "MISSING"}, ("--verbose",)),
        ({"SLOW", "AMBIGUOUS"}, ("--budget", budget)),
    ):
        for row in report.rows:
            if row.verdict in verdicts:
                return of_gate(report, row, *more)
    return None


def _user(task: str) -> str | None:
    """The first architecture that has the task."""
    return next((a.id for a in registry.architectures() if task in registry.tasks_of(a)), None)


def _folders(report: KernelReport, name: str) -> str:
    """Where a candidate lies, `top:below`; as it was asked for in reports that do not say."""
    for judged in report.candidates:
        if judged.name == name:
            return ":".join(judged.folders)
    return next(iter(report.request.get("candidates") or ()), name)


def _candidates(report: EvalReport) -> list[str]:
    folder = _folder_of_files(report.candidates)
    return ["--candidates", folder] if folder else ["--self-test"]


def _folder_of_files(files: Iterable[str]) -> str | None:
    """`examples/candidates/faster` of `examples/candidates/faster/L1/rms_norm.py`; stacked ones by `:`."""
    folders = dict.fromkeys(str(PurePath(file).parent.parent) for file in files)
    return ":".join(folders) or None


def _same(asked: dict[str, Any], *names: str) -> list[str]:
    return [word for name in names for word in _option(f"--{name}", asked.get(name))]


def _option(flag: str, value: Any) -> list[str]:
    return [] if value in (None, "") else [flag, str(value)]


def _line(words: Iterable[Any]) -> str:
    return shlex.join(["fk", *map(str, words)])
