"""The sections of a page about a report of `fk eval`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.text import Text

from fastkernels.measure.stats import geomean
from fastkernels.records import (
    LEAST_NOISE,
    EvalReport,
    ModelResult,
)
from fastkernels.report import commands, eval_table
from fastkernels.report.document import Bar, Block, Grid, Section
from fastkernels.report.kernels_sections import failure
from fastkernels.report.layout import (
    Column,
    interval,
    number,
)


def sections(report: EvalReport) -> Iterable[Section]:
    """From the score down to notes; some may be empty."""
    if report.macroeval is not None:
        score = report.macroeval
        ends = f" (95 %: {interval(score.score_ci)})" if score.score_ci else ""
        told = f"= speed-up {score.speedup:.4f} x correctness {score.correctness:.4f} "
        told += f"x coverage {score.coverage:.4f}"
        families = Grid("MacroEval by category", eval_table.FAMILIES, eval_table.families(score))
        yield Section(f"MacroEval {score.score:.4f}{ends}", [told, families])
    models = [("", model) for model in report.models]
    yield Section("Architectures", [architectures(models)] if models else [])
    is_self_test = not report.candidates
    rows = [eval_table.model_cells(model, is_self_test) for model in report.models]
    yield Section("Models", [Grid("Models", eval_table.MODELS, rows)] if rows else [])
    workloads = [(model.model, workload) for model in report.models for workload in model.workloads]
    cells = [eval_table.workload_cells(model, workload) for model, workload in workloads]
    yield Section("Workloads", [Grid("Workloads", eval_table.WORKLOADS, cells)] if cells else [])
    yield Section("Transfer", [*_transfer(report.models)])
    yield Section("Noise", [*_noise(report.models)])
    yield Section(
        "Failures",
        [
            failure(f"{model.model} {model.config}", model.failure, commands.of_model(report, model))
            for model in report.models
            if model.failure is not None
        ],
    )
    rounds = [
        eval_table.workload_cells(model.model, workload)
        for model in report.unfinished
        for workload in model.workloads
    ]
    unfinished = [Grid("Unfinished models", eval_table.WORKLOADS, rounds)] if rounds else []
    yield Section("Timed, but not judged", unfinished)
    for title, of in (
        ("Not evaluated", report.unevaluated),
        ("Skipped: no part of the score", report.skipped),
    ):
        yield Section(title, [f"{model}: {why}" for model, why in of.items()])
    yield Section("Notes", [*eval_table.notes(report)])


_ARCHITECTURES = (
    Column("category", "", right=False),
    Column("architecture", "", right=False),
    Column("valid", "", right=False),
    Column("speed-up", "candidate over baseline, of valid models"),
    Column("drawn", "the speed-up, its interval, and a mark at the mean of its category", right=False),
    Column("mean", "of the category's valid models, geometric"),
    Column("report", "", right=False),
)


def architectures(models: Sequence[tuple[str, ModelResult]]) -> Grid:
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
                category,
                f"{model.model} {model.config}",
                Text("yes", style="green") if model.valid else Text("no", style="bold red"),
                number(speed, ".3f"),
                "" if speed is None else Bar(speed, ends := _known(model), mean, _beyond(ends)),
                number(mean, ".3f"),
                name,
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


def _noise(models: Sequence[ModelResult]) -> Iterable[Block]:
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
