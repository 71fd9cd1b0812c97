"""What a finished run leaves behind: a table on stdout, JSON where asked for, an entry in MLflow, a page, the
next command, an exit code.

    raise SystemExit(publish(report, json_path, sources))

`--json -` puts the JSON alone on stdout and the table on stderr, and so does `-` of any other file. A report
is shown first, then written, then logged and kept: what fails of it costs nothing of the rest.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from fastkernels.records import AuditReport, EvalReport, GateReport, KernelReport, Report

__all__ = ["exit_code", "publish"]

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def publish(
    report: Report,
    json_path: str | None = None,
    sources: Sequence[Path] = (),
    further: Sequence[tuple[str, Callable[[], None]]] = (),
    verbose: bool = False,
    is_run: bool = True,
) -> int:
    """Show, write and log a report; returns its exit code. `sources`: the candidates' files, kept with the
    MLflow run. `further`: the paths of other files of it, and what writes them. `verbose`: the table shows
    failures whole. `is_run`: False for a report that was made from other reports; it is not logged.

    UsageError where `json_path` cannot be written. A failure of MLflow is a warning on stderr.
    """
    from fastkernels.report import json, table

    taken = "-" in (json_path, *(path for path, _ in further))
    stream = sys.stderr if taken else sys.stdout

    # Each is done whatever befell another: who reads a pipe may have gone, a disk may be full.
    with contextlib.ExitStack() as last_first:
        # An audit is a fact about our tasks, not a result of this machine.
        if is_run and not isinstance(report, AuditReport):
            last_first.callback(_close, report, sources, stream)
        for _, write in reversed(further):
            last_first.callback(write)
        if json_path:
            last_first.callback(json.write, report, json_path)
        table.show(report, stream, verbose)
    return exit_code(report)


def _close(report: KernelReport | EvalReport | GateReport, sources: Sequence[Path], stream: TextIO) -> None:
    """Log it and keep it, and say where."""
    from fastkernels.report import kept, mlflow

    run = mlflow.log(report, sources)
    for line in kept.closing(report, kept.keep(report), run):
        print(line, file=stream)


def exit_code(report: Report) -> int:
    """0 all passed · 1 a candidate failed, the gate was missed, or an audit refused something · 3 unstable,
    or this machine could not judge it all · 130 interrupted."""
    if not report.complete:
        return INTERRUPTED
    if isinstance(report, GateReport):
        return {"passed": 0, "failed": 1, "unclear": 3}[report.outcome]
    if isinstance(report, AuditReport):
        good = all(task.admitted and not task.refused for task in report.tasks)
        return (3 if report.unaudited else 0) if good else 1
    if isinstance(report, EvalReport):
        if all(model.valid for model in report.models):
            unstable = any(w.unstable for model in report.models for w in model.workloads)
            return 3 if unstable or report.unevaluated else 0
        return 1 if report.candidates else 3  # a baseline that differs from itself is no candidate's fault
    if report.summary.failed:
        return 1
    # An implementation that cannot serve a case (`--providers`) is a fact about it, not a failure.
    return 3 if report.summary.unstable or not report.summary.passed else 0
