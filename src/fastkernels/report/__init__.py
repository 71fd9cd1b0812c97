"""What a finished run leaves behind: a table on stdout, JSON where asked for, an entry in MLflow, a page, the
next command, an exit code, and of 3 what it means here.

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
from fastkernels.report.exit_codes import UNDECIDED, exit_code, undecided

__all__ = ["exit_code", "publish"]


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
    code = exit_code(report)
    with contextlib.ExitStack() as last_first:
        if code == UNDECIDED:
            last_first.callback(print, f"exit code {code}: {undecided(report)}", file=stream)
        # An audit is a fact about our tasks, not a result of this machine.
        if is_run and not isinstance(report, AuditReport):
            last_first.callback(_close, report, sources, stream)
        for _, write in reversed(further):
            last_first.callback(write)
        if json_path:
            last_first.callback(json.write, report, json_path)
        table.show(report, stream, verbose)
    return code


def _close(report: KernelReport | EvalReport | GateReport, sources: Sequence[Path], stream: TextIO) -> None:
    """Log it and keep it, and say where."""
    from fastkernels.report import kept, mlflow

    run = mlflow.log(report, sources)
    for line in kept.closing(report, kept.keep(report), run):
        print(line, file=stream)
