"""The sections of a page about a report of `fk kernels`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, get_args

from rich.text import Text

from fastkernels.judge.verdict import PROCESSES_APART
from fastkernels.records import (
    Failure,
    KernelReport,
    KernelRow,
    Skew,
)
from fastkernels.report import commands, kernels_table, tools_table
from fastkernels.report import standings as standing
from fastkernels.report.contracts import contracts, under
from fastkernels.report.document import Bar, Block, Code, Fold, Grid, Line, Point, Scatter, Section
from fastkernels.report.layout import (
    Column,
    grouped,
    number,
    task_name,
)

_SKEWS = (*(skew for skew in get_args(Skew) if skew != "uniform"), "captured")  # as case ids name them
_MOST_BARS = 40  # of one table: the others are in the rows


def sections(report: KernelReport) -> Iterable[Section]:
    """From what the run comes to down to its rows; some may be empty."""
    every = contracts(report.rows)
    found = standing.standings(report.rows)
    rows = [one.cells(one.candidate + under(one.contract, every)) for one in found]
    yield Section("Candidates", [Grid("Each candidate over tasks", standing.COLUMNS, rows)] if rows else [])
    gains = [task for one in found for task in one.tasks if task.speedup is not None]
    yield Section("Kernels by gain x share of calls", [*_gains(gains, every)])
    yield Section("Roofline", [*_roofline(report.rows)])
    yield Section("Noise", [*_noise(report.rows)])
    yield Section("Routing skew", [*_routing(report.rows)])
    yield Section("Nsight Compute", [*_profiles(report)])
    yield Section("Compute sanitizer", [*_sanitized(report)])
    yield Section("Failures", [*_row_failures(report)])
    yield Section("Notes", [*report.shadowed, *grouped(report.notes)])
    yield Section("Rows", [*_rows(report.rows)])


def _profiles(report: KernelReport) -> Iterable[Block]:
    if found := tools_table.profiles_of(report):
        yield Grid("Nsight Compute, by case", tools_table.PROFILE, tools_table.profile_cells(found))
        yield from tools_table.limits_of(found)


def _sanitized(report: KernelReport) -> Iterable[Block]:
    for one in report.sanitized:
        said, *findings = tools_table.said_of(one)
        yield Text(said, style="bold red") if tools_table.is_bad(one) else said
        yield from findings


_GAINS = (
    Column("task", "", right=False),
    Column("candidate", "", right=False),
    Column("gain x share", "the task's part of the mean: speed-up ^ share of calls"),
    Column("drawn", "the speed-up, from slower on the left to faster on the right", right=False),
    Column("speed-up", "geometric mean of the timed cases, weighted by calls"),
    Column("share of calls %", ""),
    Column("timed", "cases"),
)


def _gains(gains: Sequence[standing.TaskGain], every: Sequence[Any]) -> Iterable[Block]:
    ordered = sorted(gains, key=lambda task: -task.gain)
    rows = [
        [
            task.task + under(task.contract, every),
            task.candidate,
            f"{task.gain:.4f}",
            Bar(task.speedup or 1.0, tone=_tone(task.beyond_noise)),
            number(task.speedup, ".3f"),
            f"{100 * task.share:.1f}",
            str(sum(row.speedup is not None for row in task.rows)),
        ]
        for task in ordered
    ]
    if not rows:
        return
    yield Grid("Kernels by gain and share of calls", _GAINS, rows[:_MOST_BARS])
    if rest := rows[_MOST_BARS:]:
        yield Fold(f"{len(rest)} more", [Grid("Further kernels by gain", _GAINS, rest)])


def _tone(claimed: float) -> str:
    return "good" if claimed > 1 else "bad" if claimed < 1 else ""


def _named(row: KernelRow) -> str:
    return f"{task_name(row)} {row.case}, {row.candidate}"


def _row_tone(row: KernelRow) -> str:
    return "" if not row.significant or row.speedup is None else _tone(row.speedup)


def _roofline(rows: Sequence[KernelRow]) -> Iterable[Block]:
    points = [
        Point(
            row.roofline_pct / 100 * row.candidate_us,
            row.candidate_us,
            _row_tone(row),
            f"{_named(row)}: {row.candidate_us:.4g} us, {row.roofline_pct:.0f} %",
        )
        for row in rows
        if row.candidate_us and row.roofline_pct
    ]
    if not points:
        return
    shares = sorted(100 * point.x / point.y for point in points)
    told = (
        f"{len(points)} cases reach {shares[0]:.0f} to {shares[-1]:.0f} % of the roofline, "
        f"half of them at least {shares[len(shares) // 2]:.0f} %."
    )
    lines = (Line(1, "roofline"), Line(2, "half of it"), Line(10, "a tenth"))
    yield Scatter(
        "Time of each case against the least time that the device needs for it",
        "least time for the bytes and operations, us", "time of the candidate, us", points, lines, told,
    )  # fmt: skip
    yield f"{told} Triangles: faster (up) or slower (down) than the baseline beyond the noise."


def _noise(rows: Sequence[KernelRow]) -> Iterable[Block]:
    timed = [row for row in rows if row.speedup is not None and row.noise_pct is not None]
    if not timed:
        return
    least = 0.01  # percent: a logarithmic axis has no zero
    points = [
        Point(
            max(row.noise_pct or 0.0, least),
            max(100 * abs((row.speedup or 1.0) - 1), least),
            _row_tone(row),
            f"{_named(row)}: {row.speedup:.3f}, noise {row.noise_pct:.1f} %",
        )
        for row in timed
    ]
    every = contracts(timed)
    columns = (
        Column("contract", "", right=False), Column("timed cases", ""), Column("median noise %", ""),
        Column("nine in ten below", ""), Column("most", ""),
    )  # fmt: skip
    quantiles = []
    for contract in every:
        noise = sorted(row.noise_pct or 0.0 for row in timed if row.contract == contract)
        at = [noise[min(len(noise) - 1, int(part * len(noise)))] for part in (0.5, 0.9, 1.0)]
        quantiles.append([contract, str(len(noise)), *(f"{value:.2f}" for value in at)])
    told = "A speed-up is claimed above the line: where it is off 1 by more than twice the noise beside it."
    yield Grid("Noise by contract", columns, quantiles)
    yield Scatter(
        "Speed-up of each case against the noise beside it",
        "noise: what two baseline processes differ by, %", "how far the speed-up is from 1, %",
        points, (Line(PROCESSES_APART, "twice the noise"),), told,
    )  # fmt: skip
    yield told


_ROUTINGS = (
    Column("task", "", right=False), Column("case", "", right=False), Column("candidate", "", right=False),
    Column("uniform us", "time where every expert is as likely"),
    *(Column(f"{skew} us", "") for skew in _SKEWS),
    *(Column(f"{skew} / uniform", "above 1: this routing takes longer") for skew in _SKEWS),
)  # fmt: skip


def _routing(rows: Sequence[KernelRow]) -> Iterable[Block]:
    """Cases that were timed under uniform routing and under another; ids name the other."""
    times = {(row.task, row.case, row.candidate): row.candidate_us for row in rows if row.candidate_us}
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for (task, case, candidate), us in times.items():
        for skew in _SKEWS:
            uniform = task, case.replace(f"-{skew}-", "-"), candidate
            if uniform[1] != case and uniform in times:
                found.setdefault(uniform, {})[skew] = us
    cells = []
    for key, others in found.items():
        us = times[key]
        cells.append([
            *key,
            f"{us:.4g}",
            *(number(others.get(skew), ".4g") for skew in _SKEWS),
            *(number(others[skew] / us if skew in others else None, ".3f") for skew in _SKEWS),
        ])  # fmt: skip
    if cells:
        yield Grid("Times by routing", _ROUTINGS, cells)


def _row_failures(report: KernelReport) -> Iterable[Block]:
    merged: dict[tuple[Any, ...], list[KernelRow]] = {}
    for row in report.rows:
        if row.failure is not None:
            place = row.failure.file, row.failure.line
            merged.setdefault((row.verdict, task_name(row), row.candidate, *place), []).append(row)
    for rows in merged.values():
        row = rows[0]
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        title = f"{row.verdict}  {task_name(row)}  {row.candidate}  {row.case}{more}"
        assert row.failure is not None
        yield failure(title, row.failure, commands.of_row(report, row))


def failure(title: str, found: Failure, again: str) -> Fold:
    """What went wrong, where, what was printed, and the command that shows it again."""
    at = [f"at {found.file}" + (f":{found.line}" if found.line else "")] if found.file else []
    said = [Code(found.trace or found.output)] if found.trace or found.output else []
    return Fold(title, [found.told, *at, *said, "To see it again:", Code(again)])


def _rows(rows: Sequence[KernelRow]) -> Iterable[Block]:
    """All of them, with every column, folded by task."""
    for task, group in groupby(sorted(rows, key=task_name), key=task_name):
        own = list(group)
        passed = sum(row.verdict == "PASSED" for row in own)
        cells = [kernels_table.cells(row, several=True) for row in own]
        grid = Grid(f"Rows of {task}", kernels_table.COLUMNS, cells)
        yield Fold(f"{task}: {passed} of {len(own)} passed", [grid])
