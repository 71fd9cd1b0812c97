"""Checks, rows and report of `fk audit`."""

from __future__ import annotations

from typing import Any, Literal

from fastkernels.records.base import Document, Record
from fastkernels.records.environment import Environment


class AuditCheck(Record):
    """One candidate whose verdict is known beforehand, on one case. `good`: None where it does not apply."""

    kind: Literal["reference", "trivial", "input", "mutant", "golden"]
    name: str
    good: bool | None
    verdict: str = ""  # of the distribution with the largest error ratio
    error_ratio: float | None = None  # error / allowed error, largest of all draws; None: not measurable
    distribution: str = ""
    reason: str = ""  # why it does not apply, or what is wrong
    elsewhere: bool = False  # it does not apply here, so another case of the task has to show it


class AuditRow(Record):
    """One case. `margin`: how many times as wrong as the worst of what must pass the mistake is that comes
    closest; of error ratios, or of errors in one output on the same inputs, whichever is more. What has come
    to an error ratio of 16 is not looked at again, so a margin of more than that is a lower bound."""

    task: str
    variant: str
    case: str
    rule: str
    admitted: bool
    margin: float | None  # None: nothing to divide (an exact rule, goldens without error)
    closest: str = ""  # what must fail and has the smallest margin
    closest_ratio: float | None = None
    golden: str = ""  # what must pass and has the largest error ratio
    golden_ratio: float | None = None
    draws: int  # calls that were judged
    checks: tuple[AuditCheck, ...]


class AuditTask(Record):
    """Admitted: some of its audited cases are, and every input and parameter is seen to matter in one of
    them. `refused`: the cases that are not, and why."""

    task: str
    admitted: bool
    problems: tuple[str, ...] = ()
    refused: dict[str, str] = {}


class AuditReport(Document):
    kind: Literal["audit"] = "audit"
    environment: Environment
    request: dict[str, Any]
    tasks: tuple[AuditTask, ...]
    rows: tuple[AuditRow, ...]
    unaudited: tuple[str, ...] = ()  # cases that this machine cannot hold, and why
    wall_s: float
    complete: bool = True  # False: interrupted, rows so far
