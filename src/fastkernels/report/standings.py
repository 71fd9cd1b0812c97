"""What the rows of `fk kernels` come to: for each candidate over tasks, and for each task of a candidate.

    speed-up of a task    geometric mean over its timed cases, weighted by calls
    share                 calls of the task / calls of all of the candidate's timed cases
    gain x share          speed-up ^ share: over all tasks the product of these is the candidate's mean
    fast_p                share of tasks that passed in every case and are more than p times as fast;
                          fast_0 asks for the first alone. A case that shows no difference beyond the noise
                          has a speed-up of exactly 1 here, which is not more than 1

Durations under two contracts never mix, so each contract has standings of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fastkernels.measure.stats import geomean
from fastkernels.records import Contract, KernelRow
from fastkernels.report.layout import Column, task_name

FASTER_THAN = (1.0, 1.5, 2.0)
COLUMNS = (
    Column("candidate", "", right=False),
    Column("passed", "of its cases, held-out shapes among them"),
    Column("tasks", ""),
    Column("fast_0", "share of tasks that PASSED in every case"),
    *(
        Column(f"fast_{p:g}", legend)
        for p, legend in zip(
            FASTER_THAN,
            (
                "of these, which are more than 1 (1.5, 2) times as fast; a case within the noise has a "
                "speed-up of exactly 1 here, and so is not faster",
                "",
                "",
            ),
        )
    ),
    Column("mean", "geometric mean of the timed speed-ups, weighted by calls"),
    Column("timed", "cases in that mean"),
)


@dataclass(frozen=True)
class TaskGain:
    """One candidate in one task. `speedup` is None without a timed case."""

    task: str
    candidate: str
    contract: Contract
    rows: Sequence[KernelRow]
    share: float
    speedup: float | None

    @property
    def right(self) -> bool:
        return all(row.verdict == "PASSED" for row in self.rows)

    @property
    def beyond_noise(self) -> float:
        """As `speedup`, of what is claimed alone; 1 without it."""
        return _mean(self.rows, lambda row: row.speedup if row.significant else 1.0) or 1.0

    @property
    def gain(self) -> float:
        return 1.0 if self.speedup is None else self.speedup**self.share

    def is_faster(self, than: float) -> bool:
        return self.right and self.beyond_noise > than


@dataclass(frozen=True)
class Standing:
    """One candidate under one contract, over its tasks."""

    candidate: str
    contract: Contract
    tasks: Sequence[TaskGain]

    @property
    def rows(self) -> list[KernelRow]:
        return [row for task in self.tasks for row in task.rows]

    @property
    def passed(self) -> int:
        return sum(row.verdict == "PASSED" for row in self.rows)

    @property
    def timed(self) -> int:
        return sum(row.speedup is not None for row in self.rows)

    @property
    def mean(self) -> float | None:
        return _mean(self.rows, lambda row: row.speedup)

    @property
    def right(self) -> float:
        """fast_0."""
        return sum(task.right for task in self.tasks) / len(self.tasks)

    def fast(self, p: float) -> float:
        return sum(task.is_faster(p) for task in self.tasks) / len(self.tasks)

    def cells(self, label: str) -> list[str]:
        """As COLUMNS; `label` stands for the candidate."""
        return [
            label,
            f"{self.passed} of {len(self.rows)}",
            str(len(self.tasks)),
            f"{self.right:.2f}",
            *(f"{self.fast(p):.2f}" for p in FASTER_THAN),
            "" if self.mean is None else f"{self.mean:.3f}",
            str(self.timed or ""),
        ]


def standings(rows: Iterable[KernelRow]) -> list[Standing]:
    """In the order in which candidates and contracts first occur."""
    found: dict[tuple[str, Contract], list[KernelRow]] = {}
    for row in rows:
        found.setdefault((row.candidate, row.contract), []).append(row)
    return [Standing(*key, tasks=_tasks(own)) for key, own in found.items()]


def _tasks(rows: Sequence[KernelRow]) -> list[TaskGain]:
    """Of one candidate under one contract."""
    calls = sum(row.calls for row in rows if row.speedup is not None)
    found = []
    for task, group in groupby(sorted(rows, key=task_name), key=task_name):
        own = list(group)
        timed = sum(row.calls for row in own if row.speedup is not None)
        mean = _mean(own, lambda row: row.speedup)
        share = timed / calls if calls else 0.0
        found.append(TaskGain(task, own[0].candidate, own[0].contract, own, share, mean))
    return found


def _mean(rows: Iterable[KernelRow], value: Any) -> float | None:
    """Of the timed rows, weighted by calls; None without one."""
    timed = [(value(row), row.calls) for row in rows if row.speedup is not None]
    return geomean(*([*column] for column in zip(*timed))) if timed else None
