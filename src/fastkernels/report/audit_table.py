"""The table of `fk audit`: one line for each case, then what is wrong, and what did not apply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from fastkernels.records import AuditReport, AuditRow, AuditTask
from fastkernels.report.layout import INTERRUPTED, Column, heading, indented, legend, table, task_name

COLUMNS = (
    Column("case", "", right=False),
    Column("admitted", "", right=False),
    Column("margin", "how many times as wrong what must fail is as the worst of what must pass; at least 4"),
    Column("closest", "the mistake with the least margin: its error / allowed error", right=False),
    Column("worst golden", "what must pass and comes closest to failing: error / allowed error", right=False),
    Column("failed", "trivial candidates, stale inputs and mutants that fail, as they must"),
    Column("passed", "other implementations and orders of summation that pass, as they must"),
    Column("n/a", "checks that have no place in this case; reasons below, all of them in the JSON"),
    Column("calls", "draws of inputs, on each of which all of that is judged"),
)


def parts(report: AuditReport) -> list[RenderableType]:
    """The whole report, top-down."""
    found: list[RenderableType] = [Text(f"fk audit on {report.environment.device}", style="bold")]
    if not report.complete:
        found.append(Text(INTERRUPTED, style="bold red"))
    for task, rows in groupby(report.rows, key=task_name):
        found += [heading(task), table(COLUMNS, [cells(row) for row in rows])]
    rows = [cells(row) for row in report.rows]
    found += [Text(), *legend(COLUMNS, rows), *_not_applicable(report)]
    for task in report.tasks:
        if not task.admitted:
            found += [heading(f"{task.task} is NOT ADMITTED"), indented(*map(Text, task.problems))]
        if task.refused:
            lines = (Text(f"{case}: {why}") for case, why in task.refused.items())
            found += [heading(f"Cases of {task.task} that are NOT ADMITTED"), indented(*lines)]
    if report.unaudited:
        found += [heading("Not audited on this machine"), *map(Text, report.unaudited)]
    return [*found, *_summary(report.tasks, report)]


def cells(row: AuditRow) -> list[str | Text]:
    wrong = [check for check in row.checks if check.kind in ("trivial", "input", "mutant")]
    goldens = [check for check in row.checks if check.kind == "golden"]
    return [
        row.case,
        Text("yes", style="green") if row.admitted else Text("NO", style="bold red"),
        row.rule if row.margin is None else f"{row.margin:.3g}",
        _ratio(row.closest, row.closest_ratio),
        _ratio(row.golden, row.golden_ratio),
        f"{sum(check.verdict not in ('', 'PASSED') for check in wrong)}",
        f"{sum(check.verdict == 'PASSED' for check in goldens)}",
        f"{sum(check.good is None for check in row.checks)}",
        f"{row.draws}",
    ]


def _ratio(name: str, ratio: float | None) -> str:
    return name if ratio is None or not name else f"{name} ({ratio:.2g})"


def _not_applicable(report: AuditReport) -> list[RenderableType]:
    """Each reason once for a task, with what it concerns and in how many cases."""
    found: list[RenderableType] = [heading("Not applicable")]
    for task, rows in groupby(report.rows, key=lambda row: row.task):
        reasons = Counter(
            (check.name, check.reason) for row in rows for check in row.checks if check.good is None
        )
        lines = [
            Text(f"{name}: {reason} ({count})", style="dim") for (name, reason), count in reasons.items()
        ]
        found += [Text(task, style="dim"), indented(*lines)] if lines else []
    return found if len(found) > 1 else []


def _summary(tasks: tuple[AuditTask, ...], report: AuditReport) -> Iterable[RenderableType]:
    admitted = sum(task.admitted for task in tasks)
    checks = sum(check.good is not None for row in report.rows for check in row.checks)
    yield heading(f"{admitted} of {len(tasks)} tasks admitted")
    yield Text(f"{len(report.rows)} cases, {checks} checks, {report.wall_s:.0f} s")
