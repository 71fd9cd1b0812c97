"""The table of `fk gate`: one line for each case of head or base, failures in full below."""

from __future__ import annotations

from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from fastkernels.gate.verdicts import middle
from fastkernels.records import GateReport, GateRow, GateVerdict
from fastkernels.report import gate_words as words
from fastkernels.report.contracts import contracts, under
from fastkernels.report.kernels_table import failures
from fastkernels.report.layout import (
    CPU_WARNING,
    Column,
    heading,
    interval,
    legend,
    separation,
    table,
    task_name,
)

_COLUMNS = (
    Column("case", "", right=False),
    Column("candidate", "", right=False),
    Column("verdict", "", right=False),
    Column("change", "of the head's time against the base's, of the look with the middle speed-up"),
    Column("speed-up", "median of paired base / head times; above 1 the head is faster"),
    Column("95 %", "bootstrap interval of that median"),
    Column("base us", "median microseconds"),
    Column("head us", ""),
    Column("noise %", "how far the interval of two processes of the base reaches from 1, beside the look"),
    Column("looks", "measurements, each in processes of its own; a suspicious row has more than one"),
    Column("why", "", right=False),
)
_STYLES: dict[GateVerdict, str] = {
    "FAST": "green", "SAME": "", "NEW": "cyan", "AMBIGUOUS": "bold yellow", "SLOW": "bold red",
    "MISSING": "bold red", "BROKEN": "bold red",
}  # fmt: skip
_OUTCOMES = {"passed": "bold green", "failed": "bold red", "unclear": "bold yellow"}


def parts(report: GateReport, verbose: bool = False) -> list[RenderableType]:
    """The whole report, top-down."""
    found: list[RenderableType] = [
        Text(f"fk gate on {report.environment.device}", style="bold"),
        Text(f"head {report.head}"),
        Text(f"base {report.base}"),
        Text(words.thresholds(report)),
    ]
    if report.environment.device_type == "cpu":
        found.append(Text(CPU_WARNING, style="bold yellow"))
    several = len({row.candidate for row in report.rows}) > 1
    listed = [row for row in report.rows if not words.counted(row)]
    every = contracts(report.rows)
    for task, group in groupby(listed, key=task_name):
        rows = list(group)
        for contract in contracts(rows):
            own = [_cells(row, report, several) for row in rows if row.contract == contract]
            found += [heading(f"{task}{under(contract, every)}"), table(_COLUMNS, own)]
    found += [Text(), *legend(_COLUMNS, [_cells(row, report, several) for row in listed])]
    found += failures(
        (
            (f"{task_name(row)}  {row.candidate}", row.case, row.head or "", row.failure)
            for row in report.rows
        ),
        verbose,
    )
    if report.notes:
        found += [heading("Notes"), *map(Text, report.notes)]
    found += [Text(), Text(words.conclusion(report), style=_OUTCOMES[report.outcome])]
    found += [
        Text(line) for line in (words.advice(report), words.held_out(report), words.mean(report)) if line
    ]
    return [*found, Text(f"{report.summary.wall_s:.0f} s"), *separation(report.environment.isolation)]


def _cells(row: GateRow, report: GateReport, several: bool) -> list[str | Text]:
    look = middle(row.looks) if row.looks else None
    numbers = ["", "", "", "", ""]
    if look is not None and look.speedup_ci is not None:
        numbers = [
            f"{look.speedup:.3f}", interval(look.speedup_ci), f"{look.base_us:.4g}", f"{look.head_us:.4g}",
            f"{look.noise_pct:.1f}",
        ]  # fmt: skip
    return [
        row.case,
        row.candidate if several else "",
        Text(words.verdict(row, report.limits), style=_STYLES[row.verdict]),
        words.change(row),
        *numbers,
        str(len(row.looks) or ""),
        row.reason,
    ]
