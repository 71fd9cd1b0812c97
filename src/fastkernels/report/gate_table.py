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
    fitting,
    heading,
    interval,
    left_out,
    legend,
    more,
    separation,
    table,
    task_name,
)

COLUMNS = (
    Column("case", "", right=False),
    Column("candidate", "", right=False),
    Column("verdict", "", right=False),
    Column("change", "of the head's time against the base's, of the look with the middle speed-up"),
    Column("speed-up", "median of paired base / head times; above 1 the head is faster"),
    Column("95 %", "bootstrap interval of that median"),
    more("base us", "median microseconds"),
    more("head us", ""),
    more("noise %", "how far the interval of two processes of the base reaches from 1, beside the look"),
    more("looks", "measurements, each in processes of its own; a suspicious row has more than one"),
    more("why", "", right=False),
)
_STYLES: dict[GateVerdict, str] = {
    "FAST": "green", "SAME": "", "NEW": "cyan", "AMBIGUOUS": "bold yellow", "SLOW": "bold red",
    "MISSING": "bold red", "BROKEN": "bold red",
}  # fmt: skip
_OUTCOMES = {"passed": "bold green", "failed": "bold red", "unclear": "bold yellow"}


def parts(report: GateReport, verbose: bool = False, room: int | None = None) -> list[RenderableType]:
    """The whole report, top-down, in tables of `room` characters."""
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
    columns, cut, without = fitting(COLUMNS, [cells(row, report, several) for row in listed], room)
    shown = dict(zip(map(id, listed), cut))
    for task, group in groupby(listed, key=task_name):
        rows = list(group)
        for contract in contracts(rows):
            own = [shown[id(row)] for row in rows if row.contract == contract]
            found += [heading(f"{task}{under(contract, every)}"), table(columns, own)]
    found += [Text(), *legend(columns, cut), *left_out(without)]
    unclear = [row for row in listed if words.unclear_or_failing(row)]
    if unclear and "why" in without:
        found += [heading("Why"), *(Text(f"{row.verdict}  {row.case}: {row.reason}") for row in unclear)]
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


def cells(row: GateRow, report: GateReport, several: bool) -> list[str | Text]:
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
