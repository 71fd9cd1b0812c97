"""What a page of reports holds: for one report its results, for several a leaderboard before them, for two
that are compared what moved. `document.py` says what it is made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, get_args

from rich.text import Text

from fastkernels.judge.verdict import PROCESSES_APART
from fastkernels.measure.stats import geomean
from fastkernels.records import (
    LEAST_NOISE,
    AuditReport,
    Environment,
    EvalReport,
    Failure,
    GateReport,
    KernelReport,
    KernelRow,
    ModelResult,
    Report,
    Skew,
)
from fastkernels.report import audit_table, commands, eval_table, gate_table, gate_words, kernels_table
from fastkernels.report import standings as standing
from fastkernels.report.comparison import ORDER, Change, Comparison
from fastkernels.report.contracts import contracts, under
from fastkernels.report.document import Bar, Block, Code, Document, Fold, Grid, Line, Point, Scatter, Section
from fastkernels.report.layout import CPU_WARNING, INTERRUPTED, Column, interval, number, task_name

_SKEWS = (*(skew for skew in get_args(Skew) if skew != "uniform"), "captured")  # as case ids name them
_MOST_BARS = 40  # of one table: the others are in the rows
Named = tuple[str, Report]  # a report and the name of its file


def of(reports: Sequence[Named]) -> Document:
    """The page of one report, or of several beside each other."""
    reports = _short(reports)
    if len(reports) == 1:
        ((_, report),) = reports
        title, sections = _title(report), _sections(report)
    else:
        title = f"{len(reports)} reports of fk"
        sections = [*_leaderboards(reports)]
        for name, report in reports:
            sections.append(Section(name, [_title(report), _made(report.environment)]))
            sections += [Section(one.title, one.blocks, level=3) for one in _sections(report)]
    warnings = []
    if any(report.environment.device_type == "cpu" for _, report in reports):
        warnings.append(CPU_WARNING if len(reports) == 1 else f"{CPU_WARNING}, where a CPU is named")
    if not all(report.complete for _, report in reports):
        warnings.append(INTERRUPTED)
    lead = [_made(reports[0][1].environment)] if len(reports) == 1 else []
    return Document(title, lead, sections, warnings)


def _short(reports: Sequence[Named]) -> list[Named]:
    """The names without the folder that all are in."""
    shared = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name, _ in reports])
    return [(os.path.relpath(name, shared), report) for name, report in reports]


def of_comparison(before: Named, after: Named, found: Comparison) -> Document:
    """What moved between two reports."""
    before, after = _short([before, after])
    sides = Grid(
        "The two reports",
        (Column("of", "", right=False), Column("before", "", right=False), Column("after", "", right=False)),
        [
            ["file", before[0], after[0]],
            ["what", _title(before[1]), _title(after[1])],
            ["made", _made(before[1].environment), _made(after[1].environment)],
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


# ---------------------------------------------------------------- several reports


def _leaderboards(reports: Sequence[Named]) -> Iterable[Section]:
    """One for each kind and device: speed-ups of two devices do not compare."""

    def key(named: Named) -> tuple[str, str]:
        return named[1].kind, named[1].environment.device

    for (kind, device), group in groupby(sorted(reports, key=key), key=key):
        members = list(group)
        title = f"fk {kind} on {device}"
        if kind == "eval":
            yield Section(f"Leaderboard: {title}", [*_eval_leaders(title, members)])
        elif kind == "kernels":
            yield Section(f"Leaderboard: {title}", [*_kernel_leaders(title, members)])
        else:
            rows = [[name, _title(report), report.environment.started_at[:10]] for name, report in members]
            columns = [Column(name, "", right=False) for name in ("report", "what", "made")]
            yield Section(title, [Grid(title, columns, rows)])


_FACTORS = ("speedup", "correctness", "coverage")
_EVAL_LEADERS = (
    Column("report", "", right=False),
    Column("candidates", "", right=False),
    Column("models", "", right=False),
    Column("MacroEval", "speed-up x correctness x coverage"),
    Column("95 %", ""),
    Column("speed-up", ""),
    Column("correctness", ""),
    Column("coverage", "share of valid models"),
    Column("made", "", right=False),
)


def _eval_leaders(title: str, members: Sequence[Named]) -> Iterable[Block]:
    found = [(name, report) for name, report in members if isinstance(report, EvalReport)]
    found.sort(key=lambda one: -(one[1].macroeval.score if one[1].macroeval else 0.0))
    asked = {tuple(sorted((m.model, m.config) for m in report.models)) for _, report in found}
    rows = []
    for name, report in found:
        score = report.macroeval
        models = [f"{m.model} {m.config}" for m in report.models]
        rows.append([
            name,
            ", ".join(report.candidates) or "self-test",
            ", ".join(models) if len(models) <= 4 else f"{len(models)} models",
            number(score and score.score, ".4f"),
            interval(score.score_ci) if score else "",
            *(number(score and getattr(score, part), ".4f") for part in _FACTORS),
            report.environment.started_at[:10],
        ])  # fmt: skip
    yield Grid(f"Leaderboard: {title}", _EVAL_LEADERS, rows)
    if len(asked) > 1:
        yield "Over different models: these scores stand beside each other, and do not rank each other."
    yield _architectures([(name, model) for name, report in found for model in report.models])


def _kernel_leaders(title: str, members: Sequence[Named]) -> Iterable[Block]:
    found = [(name, report) for name, report in members if isinstance(report, KernelReport)]
    every = contracts(row for _, report in found for row in report.rows)
    entries = [(name, one) for name, report in found for one in standing.standings(report.rows)]
    entries.sort(key=lambda entry: (every.index(entry[1].contract), -(entry[1].mean or 0.0)))
    columns = (Column("report", "", right=False), *standing.COLUMNS)
    rows = [[name, *one.cells(one.candidate + under(one.contract, every))] for name, one in entries]
    yield Grid(f"Leaderboard: {title}", columns, rows)
    if len({tuple(sorted((row.task, row.case) for row in one.rows)) for _, one in entries}) > 1:
        yield "Over different cases: these means stand beside each other, and do not rank each other."


# ---------------------------------------------------------------- one report


def _title(report: Report) -> str:
    device = report.environment.device
    if isinstance(report, EvalReport):
        return f"fk eval on {device}: {', '.join(report.candidates) or 'self-test'}"
    if isinstance(report, GateReport):
        return f"fk gate on {device}: {report.head} over {report.base}"
    if isinstance(report, KernelReport):
        return f"fk kernels on {device}: {', '.join(dict.fromkeys(row.candidate for row in report.rows))}"
    return f"fk {report.kind} on {device}"


def _made(environment: Environment) -> str:
    revision = f", revision {environment.git_revision[:12]}" if environment.git_revision else ""
    return f"{environment.device}, torch {environment.torch}, {environment.started_at[:16]}{revision}"


def _sections(report: Report) -> list[Section]:
    if isinstance(report, EvalReport):
        found = _eval(report)
    elif isinstance(report, KernelReport):
        found = _kernels(report)
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
    return Section(
        "Environment",
        [Grid("Environment", columns, told), Fold("What was asked", [Grid("Request", columns, rows)])],
    )


def _kernels(report: KernelReport) -> Iterable[Section]:
    every = contracts(report.rows)
    found = standing.standings(report.rows)
    rows = [one.cells(one.candidate + under(one.contract, every)) for one in found]
    yield Section("Candidates", [Grid("Each candidate over tasks", standing.COLUMNS, rows)] if rows else [])
    gains = [task for one in found for task in one.tasks if task.speedup is not None]
    yield Section("Kernels by gain x share of calls", [*_gains(gains, every)])
    yield Section("Roofline", [*_roofline(report.rows)])
    yield Section("Noise", [*_noise(report.rows)])
    yield Section("Routing skew", [*_routing(report.rows)])
    yield Section("Failures", [*_row_failures(report)])
    yield Section("Notes", [*report.shadowed, *report.notes])
    yield Section("Rows", [*_rows(report.rows)])


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
        yield _failure(title, row.failure, commands.of_row(report, row))


def _failure(title: str, failure: Failure, again: str) -> Fold:
    at = f"at {failure.file}" + (f":{failure.line}" if failure.line else "") if failure.file else ""
    said = [Code(failure.trace or failure.output)] if failure.trace or failure.output else []
    return Fold(title, [failure.told, *([at] if at else []), *said, "To see it again:", Code(again)])


def _rows(rows: Sequence[KernelRow]) -> Iterable[Block]:
    """All of them, with every column, folded by task."""
    for task, group in groupby(sorted(rows, key=task_name), key=task_name):
        own = list(group)
        passed = sum(row.verdict == "PASSED" for row in own)
        cells = [kernels_table.cells(row, several=True) for row in own]
        grid = Grid(f"Rows of {task}", kernels_table.COLUMNS, cells)
        yield Fold(f"{task}: {passed} of {len(own)} passed", [grid])


# ---------------------------------------------------------------- whole models


def _eval(report: EvalReport) -> Iterable[Section]:
    if report.macroeval is not None:
        score = report.macroeval
        ends = f" (95 %: {interval(score.score_ci)})" if score.score_ci else ""
        told = f"= speed-up {score.speedup:.4f} x correctness {score.correctness:.4f} "
        told += f"x coverage {score.coverage:.4f}"
        families = Grid("MacroEval by category", eval_table.FAMILIES, eval_table.families(score))
        yield Section(f"MacroEval {score.score:.4f}{ends}", [told, families])
    models = [("", model) for model in report.models]
    yield Section("Architectures", [_architectures(models)] if models else [])
    is_self_test = not report.candidates
    rows = [eval_table.model_cells(model, is_self_test) for model in report.models]
    yield Section("Models", [Grid("Models", eval_table.MODELS, rows)] if rows else [])
    workloads = [(model.model, workload) for model in report.models for workload in model.workloads]
    cells = [eval_table.workload_cells(model, workload) for model, workload in workloads]
    yield Section("Workloads", [Grid("Workloads", eval_table.WORKLOADS, cells)] if cells else [])
    yield Section("Transfer", [*_transfer(report.models)])
    yield Section("Noise", [*_eval_noise(report.models)])
    yield Section(
        "Failures",
        [
            _failure(f"{model.model} {model.config}", model.failure, commands.of_model(report, model))
            for model in report.models
            if model.failure is not None
        ],
    )
    yield Section("Notes", [*eval_table.notes(report)])


_ARCHITECTURES = (
    Column("architecture", "", right=False),
    Column("report", "", right=False),
    Column("valid", "", right=False),
    Column("speed-up", "candidate over baseline, of valid models"),
    Column("drawn", "the speed-up, its interval, and a mark at the mean of its category", right=False),
    Column("category", "", right=False),
    Column("mean", "of the category's valid models, geometric"),
)


def _architectures(models: Sequence[tuple[str, ModelResult]]) -> Grid:
    """A bar for each, by category. With the name of its report, where there are several."""
    ordered = sorted(models, key=lambda one: (one[1].category, -(one[1].speedup or 0.0)))
    rows: list[list[Any]] = []
    for category, group in groupby(ordered, key=lambda one: one[1].category):
        members = list(group)
        speeds = [model.speedup for _, model in members if model.speedup is not None]
        mean = geomean(speeds) if speeds else None
        for name, model in members:
            speed = model.speedup
            rows.append([
                f"{model.model} {model.config}",
                name,
                Text("yes", style="green") if model.valid else Text("no", style="bold red"),
                number(speed, ".3f"),
                "" if speed is None else Bar(speed, ends := _known(model), mean, _beyond(ends)),
                category,
                number(mean, ".3f"),
            ])  # fmt: skip
    return Grid("Speed-up of each architecture", _ARCHITECTURES, rows)


def _known(model: ModelResult) -> tuple[float, float] | None:
    """Between which values the speed-up lies: what it is of the lower and of the upper ends of the ratios.
    None where a ratio has no interval."""
    ends: dict[str, list[tuple[float, float]]] = {}
    for workload in model.workloads:
        if workload.ratio_ci is None:
            return None
        ends.setdefault(workload.kind, []).append(workload.ratio_ci)
    if not ends:
        return None
    low, high = (
        geomean([geomean([pair[i] for pair in of_kind]) for of_kind in ends.values()]) for i in (0, 1)
    )
    return low, high


def _beyond(ends: tuple[float, float] | None) -> str:
    least = LEAST_NOISE["host"]
    return "" if ends is None else "good" if ends[0] > 1 + least else "bad" if ends[1] < 1 - least else ""


_TRANSFER = (
    Column("model", "", right=False),
    Column("task", "", right=False),
    Column("sites", "modules that run candidate code"),
    Column("calls", ""),
    Column("share of calls %", "of all calls of candidate code in the model"),
    Column("predicted", "speed-up of a step, from the time saved at all sites"),
    Column("measured", "speed-up of the same step"),
    Column("transfer", "gain measured / gain predicted: far from 1 the gain comes from elsewhere"),
)


def _transfer(models: Sequence[ModelResult]) -> Iterable[Block]:
    rows = []
    for model in models:
        swap = model.swap
        figures = [number(v, ".3f") for v in (swap.predicted, swap.measured)] + [number(swap.transfer, ".2f")]
        for task, (sites, calls) in swap.by_task.items():
            share = f"{100 * calls / swap.calls:.1f}" if swap.calls else ""
            rows.append([model.model, task, str(sites), str(calls), share, *figures])
    if rows:
        yield Grid("Transfer from kernels to models", _TRANSFER, rows)


_NOISE = (
    Column("model", "", right=False),
    Column("workload", "", right=False),
    Column("rounds", ""),
    Column("ratio", ""),
    Column("known to %", "the larger distance from the ratio to an end of its interval"),
    Column("unstable", "known to more than 5 % only", right=False),
    Column("noise g", "discrepancy of the baseline from itself"),
)


def _eval_noise(models: Sequence[ModelResult]) -> Iterable[Block]:
    rows = [
        [
            model.model,
            workload.name,
            str(len(workload.baseline)),
            f"{workload.ratio:.3f}",
            f"{100 * workload.half_width:.2f}",
            Text("unstable", style="bold yellow") if workload.unstable else "",
            f"{model.noise_floor:.4f}",
        ]
        for model in models
        for workload in model.workloads
    ]
    if rows:
        yield Grid("How well each ratio is known", _NOISE, rows)


# ---------------------------------------------------------------- gates and audits


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
            _failure(
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
