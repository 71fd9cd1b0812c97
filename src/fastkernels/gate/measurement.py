"""Measure a comparison: is each side right, and how fast is the head beside the base?

    check     head and base alone, each against the baseline and the float64 oracle, as always; no clock
    look      what is right on both sides: base A, head, base A', alternating, in one job on one device; and
              what each can be made part of: a CUDA graph, where asked for a graph of torch.compile
    again     rows that look suspicious, in fresh processes (verdicts.py)

The check comes first because in a look the bound on the head's error grows from the base's: a base that is
wrong would let a wrong head pass. Every timed iteration of a look is checked too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastkernels.gate import verdicts
from fastkernels.gate.pairs import Comparison, Key, Pair, Side, Version
from fastkernels.judge.verdict import MACHINE_FAULTS
from fastkernels.progress import Progress
from fastkernels.records import GateLimits, KernelRow, Look
from fastkernels.runner.kernel_trial.request import Job, KernelsRequest
from fastkernels.runner.kernel_trial.run import run_kernels
from fastkernels.runner.sandbox.isolation import common

Place = tuple[str, Key]  # a pair's name and a case of it

_SIDES: tuple[Side, ...] = ("base", "head")


@dataclass
class Measurement:
    """Everything that was seen of a comparison; `measure` sees it."""

    comparison: Comparison
    kernels: KernelsRequest
    limits: GateLimits
    progress: Callable[[Progress], None]
    complete: bool = True  # False after Ctrl-C
    notes: dict[str, None] = field(default_factory=dict)
    isolation: tuple[str, ...] | None = None  # of all looks
    checked: dict[tuple[str, Side, Key], KernelRow] = field(default_factory=dict)
    looks: dict[Place, list[Look]] = field(default_factory=dict)
    latest: dict[Place, KernelRow] = field(default_factory=dict)  # the head's row of the last look

    def measure(self) -> None:
        """Until Ctrl-C, which may come between two runs as well as in one."""
        try:
            self._check()
            self._look(self._comparable(), "comparing")
            for number in range(verdicts.REPETITIONS):
                self._look(self._suspicious(), f"again {number + 1}/{verdicts.REPETITIONS}")
        except KeyboardInterrupt:
            self.complete = False

    def verdict(self, pair: Pair, side: Side, key: Key) -> str | None:
        """Of one side against the oracle; None where it has no such case, or Ctrl-C came before."""
        version = pair.side(side)
        if key not in version.works:
            return None
        if version.is_baseline:
            return "PASSED"
        row = self.head_row(pair, key) if side == "head" else self.checked.get((pair.name, side, key))
        return row.verdict if row else None

    def head_row(self, pair: Pair, key: Key) -> KernelRow | None:
        """The row that says whether the head is right: the check's, or that of a look in which it failed."""
        place = (pair.name, key)
        return self.latest[place] if self._failed(place) else self.checked.get((pair.name, "head", key))

    # ------------------------------------------------------------ steps

    def _check(self) -> None:
        jobs: dict[str, tuple[Pair, Side]] = {
            f"'{pair.name}' of the {side}": (pair, side)
            for pair in self.comparison.pairs
            for side in _SIDES
            if pair.side(side).works and not pair.side(side).is_baseline
        }
        planned = [_check_job(name, pair.side(side), pair.base.source) for name, (pair, side) in jobs.items()]
        request = self.kernels.model_copy(update={"compile_check": False})
        for row in self._rows(request, planned, "checking"):
            pair, side = jobs[row.candidate]
            self.checked[pair.name, side, (row.task, row.case)] = row

    def _comparable(self) -> set[Place]:
        """What is right on both sides, and timed."""
        return {
            (pair.name, key)
            for pair in self.comparison.pairs
            for key, work in pair.head.works.items()
            if work.case.timed and all(self.verdict(pair, side, key) == "PASSED" for side in _SIDES)
        }

    def _suspicious(self) -> set[Place]:
        return {
            place
            for place, looks in self.looks.items()
            if len(looks) < verdicts.wanted(looks, self.limits) and not self._failed(place)
        }

    def _look(self, places: set[Place], phase: str) -> None:
        jobs = [_look_job(pair, places) for pair in self.comparison.pairs]
        for row in self._rows(self.kernels, [job for job in jobs if job.works], phase):
            place = (row.candidate, (row.task, row.case))
            self.latest[place] = row
            self.looks.setdefault(place, []).append(_look(row))

    def _failed(self, place: Place) -> bool:
        """Whether the head failed in a look, after it had passed the check."""
        row = self.latest.get(place)
        return row is not None and row.verdict not in ("PASSED", *MACHINE_FAULTS)

    def _rows(self, request: KernelsRequest, jobs: list[Job], phase: str) -> tuple[KernelRow, ...]:
        """Judge the jobs in new processes; nothing more after Ctrl-C."""
        if not jobs or not self.complete:
            return ()

        def progress(step: Progress) -> None:
            self.progress(replace(step, text=f"{phase} · {step.text}"))

        report = run_kernels(request, progress, jobs)
        self.complete = report.complete
        self.notes.update(dict.fromkeys(report.notes))
        self.isolation = common(self.isolation, report.environment.isolation)
        return report.rows


def _check_job(name: str, version: Version, base_source: Path | None) -> Job:
    """The version alone against the baseline, of the base's revision where there is one: the `fk` that runs
    may be the head's, whose kernels would be held against themselves. Every distribution of inputs, no
    clock."""
    works = [
        replace(work, case=work.case.model_copy(update={"timed": False})) for work in version.works.values()
    ]
    return Job(
        name, version.layers, version.files, works=works, source=version.source, base_source=base_source
    )


def _look_job(pair: Pair, places: set[Place]) -> Job:
    """Head and base beside each other on those of `places` that are this pair's."""
    return Job(
        pair.name,
        pair.head.layers,
        pair.head.files,
        works=[work for key, work in pair.head.works.items() if (pair.name, key) in places],
        base_layers=pair.base.layers,
        source=pair.head.source,
        base_source=pair.base.source,
    )


def _look(row: KernelRow) -> Look:
    facts: dict[str, Any] = {
        "contract": row.contract,
        "head_capture": row.capture,
        "base_capture": row.baseline_capture,
        "compile": row.compile,
        "lost": _lost(row),
    }
    known = row if row.unclaimed is None else row.unclaimed
    if known.speedup is None:
        problem = row.failure.message if row.failure else "no numbers"
        return Look(**facts, samples=row.samples, problem=f"{row.verdict}: {problem}")
    return Look(
        **facts,
        samples=known.samples,
        speedup=known.speedup,
        speedup_ci=known.speedup_ci,
        base_us=known.baseline_us,
        head_us=known.candidate_us,
        noise_pct=known.noise_pct,
        links=row.links,
        unstable=row.unclaimed is not None,
        waits=row.significant is None if row.unclaimed is None else row.unclaimed.waits,
    )


def _lost(row: KernelRow) -> str | None:
    """What the base can and the head cannot. An eager look times both alike: its numbers do not show it."""
    if (row.baseline_capture, row.capture) == ("yes", "no"):
        return f"the base can be captured in a CUDA graph, the head cannot: {row.capture_detail}"
    if row.compile in ("graph break", "recompiles", "error"):
        return f"torch.compile takes the base, of the head it says {row.compile}: {row.compile_detail}"
    return None
