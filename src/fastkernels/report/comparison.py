"""What moved between two reports of one kind, beyond the noise of both.

A speed-up moved where the interval of its change, from the lower end after over the upper end before to the
upper over the lower, excludes 1 by more than the noise of either report: twice what two processes with the
same code differed by, or the least noise of the contract (records/base.py). So two runs of the same code may
move in no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fastkernels.errors import UsageError
from fastkernels.judge.verdict import PROCESSES_APART
from fastkernels.records import LEAST_NOISE, EvalReport, KernelReport, KernelRow, Report, least_noise
from fastkernels.report.layout import task_name

Moved = Literal["faster", "slower", "mended", "broken", "same", "not comparable"]
ORDER: tuple[Moved, ...] = ("broken", "slower", "faster", "mended", "not comparable", "same")
_VERSIONS = ("torch", "triton", "cuda", "driver", "git_revision")
_MOST_SHOWN = 40  # characters of a version, a revision or a device
Interval = tuple[float, float]


@dataclass(frozen=True)
class Side:
    """One thing in one report. `state`: its verdict, or whether it is valid."""

    state: str
    is_good: bool
    value: float | None = None  # a speed-up
    interval: Interval | None = None
    noise: float = 0.0  # as a part of the value
    unit: str = ""  # values of two units (contracts) do not compare


@dataclass(frozen=True)
class Change:
    """One thing that both reports have."""

    what: str
    where: str
    before: Side
    after: Side

    @property
    def ratio(self) -> float | None:
        """After / before; None where one has no value, or they are in two units."""
        before, after = self.before, self.after
        if before.value is None or after.value is None or before.unit != after.unit:
            return None
        return after.value / before.value

    @property
    def moved(self) -> Moved:
        if self.before.is_good != self.after.is_good:
            return "mended" if self.after.is_good else "broken"
        if not self.after.is_good:
            return "same"
        if self.before.unit != self.after.unit:
            return "not comparable"
        if self.before.interval is None or self.after.interval is None:
            return "same"  # held-out shapes, and what claims no number
        low = self.after.interval[0] / self.before.interval[1]
        high = self.after.interval[1] / self.before.interval[0]
        noise = max(self.before.noise, self.after.noise)
        return "faster" if low > 1 + noise else "slower" if high < 1 - noise else "same"


@dataclass(frozen=True)
class Comparison:
    """`totals`: the means of both reports, where each has one over the same things."""

    kind: str
    changes: tuple[Change, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    differing: tuple[str, ...]  # what else differs: versions, the device where that was forced
    totals: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def of(self, moved: Moved) -> list[Change]:
        """The largest change first."""
        found = [change for change in self.changes if change.moved == moved]
        return sorted(found, key=lambda change: -abs((change.ratio or 1.0) - 1))


def compare(before: Report, after: Report, force: bool = False) -> Comparison:
    """UsageError where the reports are of two kinds, of two devices (unless `force`), of a kind without
    speed-ups, or have nothing in common."""
    if before.kind != after.kind:
        raise UsageError(
            f"--compare: a report of fk {before.kind} and one of fk {after.kind} measure different things. "
            "Name two of one kind"
        )
    devices = before.environment.device, after.environment.device
    if devices[0] != devices[1] and not force:
        raise UsageError(
            f"--compare: the first report is of {devices[0]}, the second of {devices[1]}: speed-ups of two "
            "devices do not compare. Measure both on one of them, or say --force"
        )
    if isinstance(before, KernelReport) and isinstance(after, KernelReport):
        sides, totals = _kernels(before, after), {}
    elif isinstance(before, EvalReport) and isinstance(after, EvalReport):
        totals = _scores(before, after)
        sides = _models(before, bool(totals)), _models(after, bool(totals))
    else:
        raise UsageError(
            f"--compare: takes reports of fk kernels or fk eval, not of fk {before.kind}, which compares by "
            "itself. See: fk report RESULT"
        )
    old, new = sides
    common = [key for key in old if key in new]
    if not common:
        raise UsageError(
            f"--compare: the reports have nothing in common: the first has {_first(old)}, the second "
            f"{_first(new)}. Name two reports of the same cases or models"
        )
    return Comparison(
        before.kind,
        tuple(Change(*key, old[key], new[key]) for key in common),
        tuple("  ".join(key) for key in old if key not in new),
        tuple("  ".join(key) for key in new if key not in old),
        tuple(_differing(before, after)),
        totals,
    )


Sides = dict[tuple[str, str], Side]


def _kernels(before: KernelReport, after: KernelReport) -> tuple[Sides, Sides]:
    """By task and case; by candidate, too, where one of the reports has several."""
    named = any(len({row.candidate for row in report.rows}) > 1 for report in (before, after))

    def sides(report: KernelReport) -> Sides:
        return {
            (f"{task_name(row)}  {row.candidate}" if named else task_name(row), row.case): _row(row)
            for row in report.rows
        }

    return sides(before), sides(after)


def _row(row: KernelRow) -> Side:
    noise = max(PROCESSES_APART * (row.noise_pct or 0.0) / 100, least_noise(row.contract, row.links))
    claimed = row.speedup_ci if row.significant is not None else None
    return Side(row.verdict, row.verdict == "PASSED", row.speedup, claimed, noise, row.contract)


def _models(report: EvalReport, with_score: bool) -> Sides:
    """Validity of each model, the ratio of each workload, and MacroEval where it is over the same models."""
    found: Sides = {}
    if with_score and report.macroeval is not None:
        score = report.macroeval
        found["MacroEval", "score"] = Side("", True, score.score, score.score_ci, LEAST_NOISE["host"])
    for model in report.models:
        name = f"{model.model} {model.config}"
        found[name, "valid"] = Side("yes" if model.valid else "no", model.valid)
        for workload in model.workloads:
            claimed = None if workload.unstable else workload.ratio_ci
            state = "unstable" if workload.unstable else ""
            found[name, workload.name] = Side(state, True, workload.ratio, claimed, LEAST_NOISE["host"])
    return found


def _scores(before: EvalReport, after: EvalReport) -> dict[str, tuple[str, str]]:
    """MacroEval and its factors, where both are over the same models."""
    old, new = before.macroeval, after.macroeval
    asked = [{(m.model, m.config) for m in report.models} for report in (before, after)]
    if old is None or new is None or asked[0] != asked[1]:
        return {}
    names = {
        "score": "MacroEval",
        "speedup": "speed-up",
        "correctness": "correctness",
        "coverage": "coverage",
    }
    found = {
        label: (f"{getattr(old, name):.4f}", f"{getattr(new, name):.4f}") for name, label in names.items()
    }
    ends = [f"{one.score_ci[0]:.4f} .. {one.score_ci[1]:.4f}" if one.score_ci else "" for one in (old, new)]
    return {**found, "95 % of MacroEval": (ends[0], ends[1])}


def _differing(before: Report, after: Report) -> Iterable[str]:
    for name in ("device", *_VERSIONS):
        old, new = getattr(before.environment, name), getattr(after.environment, name)
        if old != new:
            old, new = (str(one or "none")[:_MOST_SHOWN] for one in (old, new))
            yield f"{name}: {old} before, {new} after"


def _first(sides: Sides) -> str:
    return " ".join(next(iter(sides))) if sides else "no row"
