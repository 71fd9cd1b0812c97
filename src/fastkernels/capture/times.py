"""Durations by routing, from a report of `fk kernels --golden`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.loader.replay import CAPTURED, twin_id
from fastkernels.records import KernelReport


@dataclass(frozen=True)
class Times:
    """One case under several routings; `us` by skew, of the candidate."""

    task: str
    case: str  # of uniform routing
    candidate: str
    us: dict[str, float]

    def ratio(self, skew: str) -> float:
        """Time against uniform routing."""
        return self.us[skew] / self.us["uniform"]


def times(report: KernelReport) -> list[Times]:
    """Cases that were timed with captured and with uniform routing. UsageError if there are none."""
    found: defaultdict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    known = {task: _skews(task) for task in {row.task for row in report.rows}}
    for row in report.rows:
        if row.candidate_us is not None and row.case in known[row.task]:
            skew, case = known[row.task][row.case]
            found[row.task, case, row.candidate][skew] = row.candidate_us
    compared = [Times(*key, us) for key, us in found.items() if {CAPTURED, "uniform"} <= set(us)]
    if not compared:
        raise UsageError(
            "--times: the report has no case that was timed with captured and with uniform routing. "
            "Make one: fk kernels --golden DIR --self-test --target grouped_gemm --json REPORT"
        )
    return compared


def _skews(task: str) -> dict[str, tuple[str, str]]:
    """case id -> (its skew, id of the same case with uniform routing)."""
    known: dict[str, tuple[str, str]] = {}
    for case in registry.cases(task):
        skew = case.routing.skew if case.routing else "uniform"
        known[case.id] = (skew, case.id.replace(f"-{skew}-", "-"))
        known[twin_id(case.id)] = (CAPTURED, case.id)
    return known
