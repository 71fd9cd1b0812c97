"""Several reports beside each other: a leaderboard for each kind and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from fastkernels.records import (
    EvalReport,
    KernelReport,
    Report,
)
from fastkernels.report import standings as standing
from fastkernels.report.contracts import contracts, under
from fastkernels.report.document import Block, Grid, Section
from fastkernels.report.eval_sections import architectures
from fastkernels.report.layout import (
    Column,
    interval,
    more,
    number,
    title_of,
)

Named = tuple[str, Report]  # a report and the name of its file


def leaderboards(reports: Sequence[Named]) -> Iterable[Section]:
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
            rows = [[name, title_of(report), report.environment.started_at[:10]] for name, report in members]
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
    more("coverage", "share of valid models"),
    more("made", "", right=False),
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
            ", ".join([one.name for one in report.judged] or report.candidates) or "self-test",
            ", ".join(models) if len(models) <= 4 else f"{len(models)} models",
            number(score and score.score, ".4f"),
            interval(score.score_ci) if score else "",
            *(number(score and getattr(score, part), ".4f") for part in _FACTORS),
            report.environment.started_at[:10],
        ])  # fmt: skip
    yield Grid(f"Leaderboard: {title}", _EVAL_LEADERS, rows)
    if len(asked) > 1:
        yield "Over different models: these scores stand beside each other, and do not rank each other."
    yield architectures([(name, model) for name, report in found for model in report.models])


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
