"""What a page of reports holds: for one report its results, for several a leaderboard before them, for two
that are compared what moved. `document.py` says what it is made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text

from fastkernels.records import (
    AuditReport,
    EvalReport,
    GateReport,
    KernelReport,
    Report,
)
from fastkernels.report import (
    audit_table,
    commands,
    eval_sections,
    gate_table,
    gate_words,
    kernels_sections,
)
from fastkernels.report.comparison import ORDER, Change, Comparison
from fastkernels.report.document import Bar, Block, Document, Fold, Grid, Section
from fastkernels.report.kernels_sections import failure
from fastkernels.report.layout import (
    CPU_WARNING,
    Column,
    ended_early,
    interval,
    made,
    task_name,
    title_of,
)
from fastkernels.report.leaderboards import Named, leaderboards


def of(reports: Sequence[Named]) -> Document:
    """The page of one report, or of several beside each other."""
    reports = _short(reports)
    if len(reports) == 1:
        ((_, report),) = reports
        title, sections = title_of(report), _sections(report)
    else:
        title = f"{len(reports)} reports of fk"
        sections = [*leaderboards(reports)]
        for name, report in reports:
            sections.append(Section(name, [title_of(report), made(report.environment)]))
            sections += [Section(one.title, one.blocks, level=3) for one in _sections(report)]
    warnings = []
    if any(report.environment.device_type == "cpu" for _, report in reports):
        warnings.append(CPU_WARNING if len(reports) == 1 else f"{CPU_WARNING}, where a CPU is named")
    warnings += dict.fromkeys(filter(None, (ended_early(report) for _, report in reports)))
    lead = [made(reports[0][1].environment)] if len(reports) == 1 else []
    return Document(title, lead, sections, warnings)


def _short(reports: Sequence[Named]) -> list[Named]:
    """The names without the folder that all are in, and without what every report ends with."""
    shared = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name, _ in reports])
    names = (os.path.relpath(name, shared).removesuffix(".gz").removesuffix(".json") for name, _ in reports)
    return [(name, report) for name, (_, report) in zip(names, reports)]


def of_comparison(before: Named, after: Named, found: Comparison) -> Document:
    """What moved between two reports."""
    before, after = _short([before, after])
    sides = Grid(
        "The two reports",
        (Column("of", "", right=False), Column("before", "", right=False), Column("after", "", right=False)),
        [
            ["report", before[0], after[0]],
            ["what", title_of(before[1]), title_of(after[1])],
            ["made", made(before[1].environment), made(after[1].environment)],
            *([name, *values] for name, values in found.totals.items()),
        ],
    )
    counts = [(moved, len(found.of(moved))) for moved in ORDER]
    told = ", ".join(f"{count} {moved}" for moved, count in counts if count)
    differing = [f"also different: {line}" for line in found.differing]
    sections = [Section(f"Compared: {told}", [sides, *differing])]
    moved = [change for kind in ORDER if kind != "same" for change in found.of(kind)]
    if moved:
        sections.append(Section("Moved beyond noise", [_changes("What moved beyond noise", moved)]))
    else:
        sections.append(Section("Moved beyond noise", ["Nothing did."]))
    rest: list[Block] = []
    if same := found.of("same"):
        rest.append(Fold(f"{len(same)} the same within noise", [_changes("What did not move", same)]))
    for where, names in (("before", found.only_before), ("after", found.only_after)):
        if names:
            rest.append(Fold(f"{len(names)} in the report {where} alone", [*names]))
    if rest:
        sections.append(Section("The rest", rest))
    warnings = [CPU_WARNING] if after[1].environment.device_type == "cpu" else []
    if before[1].environment.device != after[1].environment.device:
        warnings.append("Two devices: forced, and no comparison of kernels")
    return Document(f"fk {found.kind}: {before[0]} and {after[0]}", [], sections, warnings)


_CHANGES = (
    Column("what", "", right=False),
    Column("where", "", right=False),
    Column("moved", "", right=False),
    Column("before", "speed-up over the baseline of its own report, or the verdict"),
    Column("after", ""),
    Column("change", "after / before"),
    Column("95 % before", ""),
    Column("95 % after", ""),
    Column("drawn", "the change, from slower on the left to faster on the right", right=False),
)
_MOVED_STYLES = {"broken": "bold red", "slower": "red", "faster": "green", "mended": "green"}
_MOVED_TONES = {"slower": "bad", "faster": "good"}


def _changes(name: str, changes: Sequence[Change]) -> Grid:
    return Grid(name, _CHANGES, [_change(change) for change in changes])


def _change(change: Change) -> list[Any]:
    sides = change.before, change.after
    return [
        change.what,
        change.where,
        Text(change.moved, style=_MOVED_STYLES.get(change.moved, "")),
        *(side.state if side.value is None else f"{side.value:.3f}" for side in sides),
        "" if change.ratio is None else f"{100 * (change.ratio - 1):+.1f} %",
        *(interval(side.interval) for side in sides),
        "" if change.ratio is None else Bar(change.ratio, tone=_MOVED_TONES.get(change.moved, "")),
    ]


def _sections(report: Report) -> list[Section]:
    if isinstance(report, EvalReport):
        found = eval_sections.sections(report)
    elif isinstance(report, KernelReport):
        found = kernels_sections.sections(report)
    else:
        found = _gate(report) if isinstance(report, GateReport) else _audit(report)
    return [*(section for section in found if section.blocks), _environment(report)]


def _environment(report: Report) -> Section:
    machine = report.environment.model_dump(exclude={"libraries", "isolation"})
    libraries = ", ".join(f"{name} {version}" for name, version in report.environment.libraries.items())
    separated = ", ".join(report.environment.isolation)
    asked = getattr(report, "request", {})
    columns = (Column("what", "", right=False), Column("value", "", right=False))
    told = [[name, str(value)] for name, value in machine.items() if value is not None]
    told += [["libraries", libraries], ["workers are separated by", separated]]
    rows = [[name, str(value)] for name, value in asked.items() if value not in (None, [], (), False)]
    found: list[Block] = [Grid("Environment", columns, told)]
    if nodes := getattr(report, "nodes", ()):
        cells = [[use.node, f"{use.trials} trials", made(use.environment)] for use in nodes]
        found.append(Grid("Nodes", (*columns, Column("machine", "", right=False)), cells))
    return Section("Environment", [*found, Fold("What was asked", [Grid("Request", columns, rows)])])


def _gate(report: GateReport) -> Iterable[Section]:
    lines = (gate_words.mean(report), gate_words.advice(report), gate_words.held_out(report))
    told = [line for line in (*lines, gate_words.thresholds(report)) if line]
    yield Section(gate_words.conclusion(report), told)
    cells = [
        [task_name(row), *gate_table.cells(row, report, several=True)]
        for row in report.rows
        if not gate_words.counted(row)
    ]
    columns = (Column("task", "", right=False), *gate_table.COLUMNS)
    yield Section("Rows", [Grid("Rows of the gate", columns, cells)] if cells else [])
    yield Section(
        "Failures",
        [
            failure(
                f"{row.verdict}  {task_name(row)}  {row.case}", row.failure, commands.of_gate(report, row)
            )
            for row in report.rows
            if row.failure is not None
        ],
    )
    yield Section("Notes", [*report.notes])


def _audit(report: AuditReport) -> Iterable[Section]:
    admitted = sum(task.admitted for task in report.tasks)
    cells = [[task_name(row), *audit_table.cells(row)] for row in report.rows]
    columns = (Column("task", "", right=False), *audit_table.COLUMNS)
    yield Section(f"{admitted} of {len(report.tasks)} tasks admitted", [Grid("Cases", columns, cells)])
    refused = [f"{task.task}: {problem}" for task in report.tasks for problem in task.problems]
    refused += [f"{task.task}  {case}: {why}" for task in report.tasks for case, why in task.refused.items()]
    yield Section("Not admitted", refused)
    yield Section("Not audited on this machine", [*report.unaudited])
