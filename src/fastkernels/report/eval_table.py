"""The tables of `fk eval`: MacroEval, models, their workloads, notes, failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from rich.console import RenderableType
from rich.text import Text

from fastkernels.records import UNSTABLE_HALF_WIDTH, EvalReport, MacroEval, ModelResult, WorkloadResult
from fastkernels.report.kernels_table import failures
from fastkernels.report.layout import (
    Column,
    fitting,
    foot,
    grouped,
    heading,
    interval,
    left_out,
    legend,
    more,
    number,
    opening,
    table,
)

MODELS = (
    Column("model", "", right=False),
    Column("config", "", right=False),
    Column(
        "valid", "ran, correctness at least 0.9, a candidate was reached (no self-test has one)", right=False
    ),
    Column("speed-up", "geometric mean of throughput and latency gain; only of valid models"),
    more("throughput", "candidate / baseline rate, geometric mean over workloads"),
    more("latency", "baseline / candidate seconds, geometric mean over workloads"),
    Column("correctness", "1: as close to the baseline as its own noise; 0: as far as an unrelated output"),
    more(
        "d",
        "mean discrepancy of the samples: 1 - teacher-forced agreement, or the model's own distance",
    ),
    more(
        "noise g", "discrepancy that the baseline shows against itself (0.95 quantile of three or more runs)"
    ),
    more("ruin f", "half the median discrepancy of unrelated outputs"),
    more("sites", "modules of the model that run candidate code"),
    more("calls", "their calls in the proof pass"),
    Column("transfer", "measured gain of a step / gain predicted from the time saved at the sites"),
)
WORKLOADS = (
    Column("model", "", right=False),
    Column("workload", "", right=False),
    Column("baseline", "median of the rounds"),
    Column("candidate", ""),
    Column("unit", "", right=False),
    Column("ratio", "median over alternating rounds, above 1 the candidate is better"),
    Column("95 %", "where that median lies, by its few rounds"),
    Column("", "", right=False),
)
FAMILIES = (
    Column("category", "", right=False),
    Column("models", ""),
    Column("speed-up", ""),
    Column("correctness", ""),
    Column("coverage", ""),
)


def parts(report: EvalReport, verbose: bool = False, room: int | None = None) -> list[RenderableType]:
    """The whole report, top-down, in tables of `room` characters."""
    who = ", ".join(report.candidates) or "self-test (the baseline against itself)"
    how = "contract host: wall clock of whole workloads, rounds of both sides alternate"
    found = opening(f"fk eval on {report.environment.device}: {who}", report, [how])
    models = [model_cells(model, is_self_test=not report.candidates) for model in report.models]
    workloads = [
        workload_cells(model.model, workload) for model in report.models for workload in model.workloads
    ]
    shown = {"Models": fitting(MODELS, models, room), "Workloads": fitting(WORKLOADS, workloads, room)}
    for name, (columns, rows, _) in shown.items():
        if rows:
            found += [heading(name), table(columns, rows)]
    found.append(Text())
    for columns, rows, _ in shown.values():
        found += legend(columns, rows)
    if any(workload.unstable for model in report.models for workload in model.workloads):
        bound = f"{100 * UNSTABLE_HALF_WIDTH:.0f} %"
        told = f"unstable: known to more than {bound} only; a quieter machine or --rounds 30 tells more"
        found.append(Text(told, style="dim"))
    found += left_out(*(without for _, _, without in shown.values()))
    if report.unfinished:
        rounds = [
            [*workload_cells(model.model, workload)[:-1], f"rounds: {len(workload.baseline)}"]
            for model in report.unfinished
            for workload in model.workloads
        ]
        found += [heading("Timed, but not judged: whether the answers were right is not known")]
        found += [table(WORKLOADS, rounds), *([] if workloads else [Text(), *legend(WORKLOADS, rounds)])]
    if said := notes(report):
        found += [heading("Notes"), *map(Text, said)]
    found += failures(
        ((model.model, model.config, "FAILED", model.failure) for model in report.models), verbose
    )
    if report.skipped:
        found.append(heading("Skipped: no part of the score"))
        found += [Text(f"{model}: {why}") for model, why in report.skipped.items()]
    if report.unevaluated:
        found.append(heading("Not evaluated"))
        found += [Text(f"{model}: {why}") for model, why in report.unevaluated.items()]
        found.append(Text("No MacroEval without them: name the others with --model to score those alone"))
    if report.macroeval is not None:
        found += _macroeval(report.macroeval, report.models)
    return [*found, Text(), *foot(report.environment)]


def model_cells(model: ModelResult, is_self_test: bool) -> list[str | Text]:
    mean_d = sum(model.d) / len(model.d) if model.d else None
    return [
        model.model,
        f"{model.config} ({model.size})",
        Text("yes", style="green") if model.valid else Text("no", style="bold red"),
        number(model.speedup, ".3f"),
        number(model.throughput_speedup, ".3f"),
        number(model.latency_speedup, ".3f"),
        f"{model.correctness:.4f}",
        number(mean_d, ".4f"),
        f"{model.noise_floor:.4f}",
        f"{model.ruin_point:.3f}",
        "" if is_self_test else str(model.swap.sites),
        "" if is_self_test else str(model.swap.calls),
        number(model.swap.transfer, ".2f"),
    ]


def workload_cells(model: str, workload: WorkloadResult) -> list[str | Text]:
    marks = ("unstable", workload.unstable), ("clipped", workload.clipped)
    return [
        model,
        workload.name,
        *(f"{median(side):.5g}" if side else "" for side in (workload.baseline, workload.candidate)),
        workload.unit,
        f"{workload.ratio:.3f}",
        interval(workload.ratio_ci),
        Text(", ".join(name for name, is_so in marks if is_so), style="bold yellow"),
    ]


def _macroeval(found: MacroEval, models: Sequence[ModelResult]) -> list[RenderableType]:
    ends = f"  (95 %: {found.score_ci[0]:.4f} .. {found.score_ci[1]:.4f})" if found.score_ci else ""
    lines: list[RenderableType] = [
        heading(f"MacroEval {found.score:.4f}{ends}"),
        Text(
            f"= speed-up {found.speedup:.4f} x correctness {found.correctness:.4f} "
            f"x coverage {found.coverage:.4f}"
        ),
    ]
    if len({workload.kind for model in models if model.valid for workload in model.workloads}) == 2:
        lines.append(
            Text(
                f"speed-up by throughput alone {found.speedup_throughput_only:.4f}, "
                f"by latency alone {found.speedup_latency_only:.4f}"
            )
        )
    if len(found.by_category) > 1:
        lines += [Text(), table(FAMILIES, families(found))]
    if len(found.by_category) > 1 or not found.coverage:
        said = "coverage: share of valid models; a category without one counts with speed-up 0.5"
        lines.append(Text(said, style="dim"))
    return lines


def families(found: MacroEval) -> list[list[str]]:
    """As FAMILIES."""
    return [
        [
            name,
            f"{f['models']:.0f}",
            number(f.get("speedup"), ".4f"),
            f"{f['correctness']:.4f}",
            f"{f['coverage']:.2f}",
        ]
        for name, f in found.by_category.items()
    ]


def notes(report: EvalReport) -> list[str]:
    """Of all models."""
    return grouped(f"{model.model}: {note}" for model in report.models for note in _notes(model))


def _notes(model: ModelResult) -> Iterable[str]:
    yield from model.notes
    yield from model.swap.shadowed
    if model.swap.unused:
        yield f"never imported by this model: {', '.join(model.swap.unused)}"
