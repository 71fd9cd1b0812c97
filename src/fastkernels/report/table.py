"""A report as people read it."""

from __future__ import annotations

from typing import TextIO

from rich.console import RenderableType

from fastkernels.records import AuditReport, EvalReport, GateReport, Report
from fastkernels.report import audit_table, eval_table, gate_table, kernels_table, layout


def show(report: Report, stream: TextIO, verbose: bool = False) -> None:
    """Print to a stream: colours and folding on a terminal, plain text elsewhere. `verbose`: all columns, and
    failures with all of their frames and output."""
    layout.show(_parts(report, verbose, None if verbose else layout.room(stream)), stream)


def text(report: Report) -> str:
    """The same as plain text, with all columns."""
    return layout.plain(_parts(report))


def _parts(report: Report, verbose: bool = False, room: int | None = None) -> list[RenderableType]:
    if isinstance(report, EvalReport):
        return eval_table.parts(report, verbose, room)
    if isinstance(report, AuditReport):
        return audit_table.parts(report)
    if isinstance(report, GateReport):
        return gate_table.parts(report, verbose, room)
    return kernels_table.parts(report, verbose, room)
