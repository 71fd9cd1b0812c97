"""Looks, rows and report of `fk gate`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from fastkernels.records.base import Contract, Document, Record
from fastkernels.records.environment import Environment
from fastkernels.records.kernels import Failure

GateVerdict = Literal["FAST", "SAME", "SLOW", "AMBIGUOUS", "NEW", "MISSING", "BROKEN"]


Can = Literal["yes", "no", "n/a"]


class Look(Record):
    """Head and base alternating in processes of their own, once. Without numbers where it told nothing."""

    speedup: float | None = None  # median of paired ratios base / head; above 1 the head is faster
    speedup_ci: tuple[float, float] | None = None
    base_us: float | None = None
    head_us: float | None = None
    noise_pct: float | None = None  # what two processes of the base differ by beside it, upper bound
    samples: int = 0
    problem: str | None = None  # why there are no numbers
    contract: Contract | None = None  # of its numbers: both sides are timed under the same one
    links: int | None = None  # of the captured chain, or 1; not known of an older report
    # The interval is too wide for a number: it may prove a change, and never that there is none.
    unstable: bool = False
    waits: bool = False  # the head waits for the device in its call: its time claims nothing
    head_capture: Can = "n/a"  # whether each side alone can be captured in a CUDA graph
    base_capture: Can = "n/a"
    compile: Literal["ok", "graph break", "recompiles", "error", "n/a"] = "n/a"  # of the head beside the base
    lost: str | None = None  # what the base can and the head cannot: be captured, be compiled whole

    @model_validator(mode="after")
    def _whole(self) -> Look:
        numbers = (self.speedup, self.speedup_ci, self.base_us, self.head_us, self.noise_pct)
        known = [number is not None for number in numbers]
        if any(known) != all(known) or all(known) == (self.problem is not None):
            raise ValueError("a look has all its numbers, or says why it has none")
        return self


class GateRow(Record):
    """One case of a head against its base."""

    task: str
    variant: str
    case: str
    candidate: str  # name of the pair: the head's folder, or `baseline` for revisions
    verdict: GateVerdict
    reason: str  # one sentence: why this verdict
    contract: Contract
    calls: int = 1
    timed: bool = True  # held-out shapes are checked, not timed
    head: str | None  # verdict of the head against the float64 oracle, `PASSED`; None: it is not there
    base: str | None  # the same for the base
    looks: tuple[Look, ...] = ()  # the first, and its repetitions in fresh processes
    failure: Failure | None = None


class GateLimits(Record):
    """What counts as a regression: beyond both thresholds, and beyond the noise."""

    max_regression_pct: float  # of the base's time
    min_regression_us: float
    min_speedup: float | None = None  # of the geometric mean over timed rows of the primary contract


class GateSummary(Record):
    verdicts: dict[GateVerdict, int]
    geomean_speedup: float | None  # over timed rows of the primary contract, weighted by calls
    geomean_ci: tuple[float, float] | None = None  # of the rows' lower and of their upper ends
    min_speedup: Literal["met", "missed", "unclear"] | None = None  # None: none was asked for
    wall_s: float


class GateReport(Document):
    kind: Literal["gate"] = "gate"
    environment: Environment
    request: dict[str, Any]
    head: str  # what was compared, as a user would say it
    base: str
    limits: GateLimits
    rows: tuple[GateRow, ...]
    notes: tuple[str, ...] = ()
    outcome: Literal["passed", "failed", "unclear"]
    summary: GateSummary
    complete: bool = True  # False: interrupted, rows so far
