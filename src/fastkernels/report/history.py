"""Versions of candidates and what they came to: pure functions on reports.

version   all files of a candidate's folders, by their hash (loader/digest.py)
parent    the version that was judged under the same name before it
result    of a version in one task (or model), size and device: its last measurement of each case
band      how far a speed-up may be off: its interval, and beyond it what two processes with the same code
          differ by; of several cases the intervals shrink with their number and the noise does not
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastkernels.judge.verdict import PROCESSES_APART
from fastkernels.records import EvalReport, KernelReport, KernelRow, ModelResult, least_noise, primary
from fastkernels.report.layout import task_name
from fastkernels.report.store import Run

SHOWN = 8  # characters of a hash


class Of(NamedTuple):
    """What a speed-up is of: a task or a model."""

    what: str  # `L1/glu:gelu`, or `model llama`
    size: str
    device: str


@dataclass(frozen=True)
class Measured:
    """A case or a workload. `interval`, `noise`: relative to the speed-up."""

    speedup: float
    interval: float
    noise: float
    calls: int = 1


@dataclass(frozen=True)
class Result:
    """Of one version, or of one run of it."""

    at: str
    measured: Mapping[str, Measured] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()

    @property
    def speedup(self) -> float | None:
        return mean(self.measured.values())[0] if self.measured else None

    @property
    def band(self) -> float | None:
        return mean(self.measured.values())[1] if self.measured else None

    def then(self, later: Result) -> Result:
        """With what was measured later in place of what it repeats. A case that fails now has no speed-up."""
        new = later.passed | later.failed
        kept = {case: of for case, of in self.measured.items() if case not in new}
        return Result(
            at=later.at,
            measured={**kept, **later.measured},
            passed=(self.passed - new) | later.passed,
            failed=(self.failed - new) | later.failed,
        )


@dataclass
class Version:
    name: str
    sha256: str
    parent: Version | None
    results: dict[Of, Result] = field(default_factory=dict)
    runs: list[tuple[Run, dict[Of, Result]]] = field(default_factory=list)  # oldest first

    @property
    def short(self) -> str:
        return self.sha256[:SHOWN]

    @property
    def key(self) -> str:
        return f"{self.name}@{self.short}"


class Change(NamedTuple):
    """Of the speed-up from one result to another, over the cases that both have timed."""

    ratio: float
    band: float
    cases: int

    @property
    def mark(self) -> str:
        if abs(math.log(self.ratio)) <= math.log1p(self.band):
            return "="
        return "▲" if self.ratio > 1 else "▼"


def versions(runs: Iterable[Run]) -> list[Version]:
    """By name, oldest first. `runs`: oldest first. What has no hash (self-tests, implementations, older
    reports) is of no version."""
    found: dict[tuple[str, str], Version] = {}
    last: dict[str, Version] = {}
    for run in runs:
        judged = run.report.candidates if isinstance(run.report, KernelReport) else run.report.judged
        for files in judged:
            key = (files.name, files.sha256)
            if key not in found:
                found[key] = Version(*key, parent=last.get(files.name))
            version = last[files.name] = found[key]
            new = _results(run.report, files.name)
            version.runs.append((run, new))
            for of, result in new.items():
                before = version.results.get(of)
                version.results[of] = before.then(result) if before else result
    return sorted(found.values(), key=lambda version: version.name)  # stable: each name's oldest first


def best(found: Iterable[Version]) -> dict[Of, Version]:
    """Of each task and model the fastest version among those that have the most cases timed there and fail
    none: a mean over fewer cases is another question."""
    having: dict[Of, list[Version]] = {}
    for version in found:
        for of, result in version.results.items():
            if result.measured and not result.failed:
                having.setdefault(of, []).append(version)

    def order(of: Of, version: Version) -> tuple[int, float]:
        result = version.results[of]
        return len(result.measured), result.speedup or 0.0

    return {of: max(those, key=lambda v: order(of, v)) for of, those in sorted(having.items())}


def change(before: Result, after: Result) -> Change | None:
    """None where no case is timed in both."""
    both = [case for case in before.measured if case in after.measured]
    if not both:
        return None
    old, old_band = mean([before.measured[case] for case in both])
    new, new_band = mean([after.measured[case] for case in both])
    return Change(new / old, (1 + old_band) * (1 + new_band) - 1, len(both))


def mean(measured: Iterable[Measured]) -> tuple[float, float]:
    """The geometric mean, weighted by calls, and its band."""
    those = list(measured)
    weights = [one.calls for one in those]
    total = sum(weights)
    logs = sum(w * math.log(one.speedup) for w, one in zip(weights, those, strict=True))
    interval = math.sqrt(sum((w * one.interval) ** 2 for w, one in zip(weights, those, strict=True)))
    noise = sum(w * one.noise for w, one in zip(weights, those, strict=True))
    return math.exp(logs / total), (interval + noise) / total


def _results(report: KernelReport | EvalReport, name: str) -> dict[Of, Result]:
    size, device = str(report.request.get("size")), report.environment.device
    at = report.environment.started_at
    found: dict[Of, Result] = {}
    if isinstance(report, EvalReport):
        for model in report.models:
            found[Of(f"model {model.model}", size, device)] = _of_model(model, at)
        return found
    rows: dict[Of, list[KernelRow]] = {}
    contract = primary(row.contract for row in report.rows)
    for row in report.rows:
        if row.candidate == name and row.contract == contract:
            rows.setdefault(Of(task_name(row), size, device), []).append(row)
    return {of: _of_rows(those, at) for of, those in rows.items()}


def _of_rows(rows: Sequence[KernelRow], at: str) -> Result:
    measured = {}
    for row in rows:
        if row.speedup is not None and row.speedup_ci is not None:
            low, high = row.speedup_ci
            half = max(high - row.speedup, row.speedup - low) / row.speedup
            noise = max(PROCESSES_APART * (row.noise_pct or 0) / 100, least_noise(row.contract, row.links))
            measured[row.case] = Measured(row.speedup, half, noise, row.calls)
    passed = frozenset(row.case for row in rows if row.verdict == "PASSED")
    return Result(at, measured, passed, frozenset(row.case for row in rows) - passed)


def _of_model(model: ModelResult, at: str) -> Result:
    timed = {w.name: Measured(w.ratio, w.half_width, 0.0) for w in model.workloads} if model.valid else {}
    every = frozenset(w.name for w in model.workloads) or frozenset(("model",))
    return Result(at, timed, every if model.valid else frozenset(), frozenset() if model.valid else every)
