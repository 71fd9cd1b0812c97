"""A report as people read it."""

from __future__ import annotations

from typing import TextIO

from rich.console import RenderableType

from fastkernels.records import EvalReport, KernelReport
from fastkernels.report import eval_table, kernels_table, layout


def show(report: KernelReport | EvalReport, stream: TextIO) -> None:
    """Print to a stream: colours and folding on a terminal, plain text elsewhere."""
    layout.show(_parts(report), stream)


def text(report: KernelReport | EvalReport) -> str:
    """The same as plain text."""
    return layout.plain(_parts(report))


def _parts(report: KernelReport | EvalReport) -> list[RenderableType]:
    return eval_table.parts(report) if isinstance(report, EvalReport) else kernels_table.parts(report)
