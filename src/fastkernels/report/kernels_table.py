"""The table of `fk kernels`: one line for each timed trial, held-out shapes summed up, failures in full
below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from fastkernels.records import Failure, KernelReport, KernelRow
from fastkernels.report import tools_table
from fastkernels.report.contracts import contracts, under
from fastkernels.report.layout import (
    Column,
    fitting,
    foot,
    grouped,
    heading,
    indented,
    interval,
    left_out,
    legend,
    more,
    number,
    opening,
    table,
    task_name,
)
from fastkernels.report.standings import COLUMNS as STANDINGS
from fastkernels.report.standings import standings

COLUMNS = (
    Column("case", "", right=False),
    Column("candidate", "", right=False),
    Column("verdict", "", right=False),
    Column("speed-up", "median of paired baseline / candidate times; above 1 the candidate is faster"),
    Column("95 %", "bootstrap interval of that median"),
    Column("", "", right=False),
    Column("error", "worst error against float64 / allowed error (twice the baseline's); at most 1 passes"),
    more("candidate us", "median microseconds of the candidate"),
    more("baseline us", "median microseconds of the baseline"),
    more("roofline %", "least time that bytes and operations need on this device / candidate's time"),
    more(
        "noise %",
        "how far the interval of two processes with the baseline's code reaches from 1, beside this trial",
    ),
    more("capture", "whether the call can be captured in a CUDA graph", right=False),
    more(
        "compile",
        "torch.compile(fullgraph=True) of it, and of the nearest module that holds it; "
        "recompiles: it is traced more often than the baseline; why is under Notes",
        right=False,
    ),
    more("baseline", "which implementations it ran", right=False),
    more("authored %", "share of device time in kernels that the candidate itself defines"),
)
_OUTPUT_LINES = 20  # of captured output in the table; the JSON has all of it
_CONTRACTS = {
    "graph": "contract graph: device time of a call in a CUDA graph of a chain of them, cold L2",
    "collective": "contract collective: time of the slowest rank, from a start that all share",
    "eager": "contract eager: device time of one eager call, launch latency hidden, cold L2",
    "host": "contract host: wall clock from the call to its end",
}


def parts(report: KernelReport, verbose: bool = False, room: int | None = None) -> list[RenderableType]:
    """The whole report, top-down, in tables of `room` characters."""
    every = contracts(report.rows)
    title = f"fk kernels on {report.environment.device}"
    found = opening(title, report, [_CONTRACTS[contract] for contract in every])
    several = len({row.candidate for row in report.rows}) > 1
    listed = [row for row in report.rows if _listed(row)]
    columns, rows, without = fitting(COLUMNS, [cells(row, several) for row in listed], room)
    shown = dict(zip(map(id, listed), rows))
    for task, group in groupby(report.rows, key=task_name):
        of_task = list(group)
        for contract in contracts(of_task):
            own = [row for row in of_task if row.contract == contract]
            who = "" if several else f"  {own[0].candidate}"
            found.append(heading(f"{task}{under(contract, every)}{who}"))
            if any(map(_listed, own)):
                found.append(table(columns, [shown[id(row)] for row in own if _listed(row)]))
            found += _held_out(own)
    if listed:
        found += [Text(), *legend(columns, rows), *_marks(listed), *left_out(without)]
    found += failures(
        ((f"{task_name(row)}  {row.candidate}", row.case, row.verdict, row.failure) for row in report.rows),
        verbose,
    )
    found += tools_table.of_report(report)
    if report.shadowed:
        found += [heading("Candidates that do not reach the tasks above them"), *map(Text, report.shadowed)]
    notes = grouped([*report.notes, *_compile_notes(report.rows)])
    if notes:
        found += [heading("Notes"), *map(Text, notes)]
    return [*found, *_summary(report)]


def _held_out(rows: Sequence[KernelRow]) -> Iterable[RenderableType]:
    checked = sum(not row.timed and row.verdict == "PASSED" for row in rows)
    if checked:
        shapes = "shape" if checked == 1 else "shapes"
        yield Text(f"{checked} held-out {shapes} checked and passed, not timed")


def _listed(row: KernelRow) -> bool:
    """Held-out shapes that passed are only counted; what cannot be served is listed with the failures."""
    return (row.timed or row.verdict != "PASSED") and row.case != "*"


def cells(row: KernelRow, several: bool) -> list[str | Text]:
    return [
        row.case,
        row.candidate if several else "",
        Text(row.verdict, style="green" if row.verdict == "PASSED" else "bold red"),
        number(row.speedup, ".3f"),
        interval(row.speedup_ci),
        _mark(row),
        number(row.error_ratio, ".2g"),
        number(row.candidate_us, ".4g"),
        number(row.baseline_us, ".4g"),
        number(row.roofline_pct, ".0f"),
        number(row.noise_pct, ".1f"),
        "" if row.capture == "n/a" else row.capture,
        "" if row.compile == "n/a" else row.compile,
        row.baseline_impl or "",
        "" if row.origins is None else format(100 * row.authored, ".0f"),
    ]


def _mark(row: KernelRow) -> str | Text:
    if row.speedup is None:
        return ""
    if row.significant is None:
        return "?"
    if not row.significant:
        return "="
    return Text("▲", style="green") if row.speedup > 1 else Text("▼", style="red")


def _marks(rows: Sequence[KernelRow]) -> Iterable[RenderableType]:
    yield Text("▲ faster, ▼ slower, = within the interval or twice the noise", style="dim")
    if any(_mark(row) == "?" for row in rows):
        waits = "? nothing is claimed: the call waits for the device, so the host's work is in its time"
        yield Text(waits, style="dim")


def _compile_notes(rows: Sequence[KernelRow]) -> Iterable[str]:
    """Why the column `compile` says what it says: all cases of a candidate say the same."""
    return dict.fromkeys(
        f"torch.compile of {row.candidate}, {task_name(row)}: {row.compile}: {row.compile_detail}"
        for row in rows
        if row.compile_detail
    )


def failures(
    items: Iterable[tuple[str, str, str, Failure | None]], verbose: bool = False
) -> list[RenderableType]:
    """`(what, case, verdict, failure)`; one verdict at one place is printed once, with its first case.

    Messages and output differ from case to case by figures alone; all of them are in the JSON. `verbose`:
    with the harness's frames, and nothing cut.
    """
    merged: dict[tuple[str, str, str | None, int | None], list[tuple[str, Failure]]] = {}
    for what, case, verdict, failure in items:
        if failure is not None:
            key = (what, verdict, failure.file, failure.line)
            merged.setdefault(key, []).append((case, failure))
    found: list[RenderableType] = [heading("Failures")] if merged else []
    for (what, verdict, file, line), cases in merged.items():
        case, failure = cases[0]
        more = f"  (and {len(cases) - 1} more)" if len(cases) > 1 else ""
        found.append(Text.assemble((verdict, "bold red"), f"  {what}  {case}{more}"))
        place = [f"at {file}" + (f":{line}" if line else "")] if file else []
        told = [*_whole(failure)] if verbose else [*_tail(failure.output)]
        found.append(indented(*map(Text, [failure.told, *place, *told])))
    return found


def _whole(failure: Failure) -> Iterable[str]:
    if failure.trace:
        yield from ("with the harness's frames:", *(f"  {line}" for line in failure.trace.splitlines()))
    if failure.output:
        yield from ("it printed:", *(f"  {line}" for line in failure.output.splitlines()))


def _tail(output: str) -> Sequence[str]:
    lines = output.rstrip().splitlines()
    if not lines:
        return []
    cut = [f"... {len(lines) - _OUTPUT_LINES} lines before"] if len(lines) > _OUTPUT_LINES else []
    return ["it printed:", *(f"  {line}" for line in [*cut, *lines[-_OUTPUT_LINES:]])]


def _summary(report: KernelReport) -> Iterable[RenderableType]:
    summary = report.summary
    unsupported = summary.rows - summary.passed - summary.failed - summary.unstable
    others = (summary.failed, "failed"), (summary.unstable, "unstable"), (unsupported, "unsupported")
    counts = [f"{summary.passed} of {summary.rows} passed", *(f"{n} {what}" for n, what in others if n)]
    yield heading(", ".join(counts))
    every = contracts(report.rows)
    found = [one.cells(one.candidate + under(one.contract, every)) for one in standings(report.rows)]
    yield from (table(STANDINGS, found), *legend(STANDINGS, found)) if found else ()
    shares = (
        (summary.measuring_share, "measuring"),
        (summary.compiling_share, "compiling (imports and first calls)"),
        (summary.looking_share, "looking at compilation and kernels"),
    )
    told = [f"{100 * share:.0f} % {what}" for share, what in shares if share]
    yield Text(", ".join([f"{summary.wall_s:.0f} s", *told]))
    yield from foot(report.environment)
