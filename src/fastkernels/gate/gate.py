"""`run_gate`: is the head as right as it must be, and no slower than its base?

run = run_gate(GateRequest(head="my/candidate", base="origin/main"))
run.report.outcome        "passed", "failed" or "unclear"
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from fastkernels.gate import reported, rows, verdicts
from fastkernels.gate.comparison import opened
from fastkernels.gate.inventory import Filters
from fastkernels.gate.measurement import Measurement
from fastkernels.measure.environment import environment
from fastkernels.progress import Progress
from fastkernels.records import (
    Contract,
    Device,
    Environment,
    GateLimits,
    GateReport,
    GateSummary,
    GateVerdict,
)
from fastkernels.runner.kernel_trial.request import KernelsRequest
from fastkernels.settings import resolve

MAX_REGRESSION_PCT = 3.0  # less than a regression of 5 %, more than a quiet machine's noise
# Below it a change is none, whatever its share: the device's clock agrees with a profiler to 0.3 us
# (docs/record/measured.md).
MIN_REGRESSION_US = 0.3


class GateRequest(Filters):
    """What `fk gate` was asked. `head` and `base` as in comparison.py."""

    head: str
    base: str | None = None
    max_regression_pct: float = MAX_REGRESSION_PCT
    min_regression_us: float = MIN_REGRESSION_US
    min_speedup: float | None = None
    device: Device | None = None
    budget_s: float | None = None
    timeout_s: float | None = None  # of one phase of either side
    # Off: every variant is loaded and traced once more with what holds it, which is much for two revisions.
    compile_check: bool = False

    @classmethod
    def parse(cls, **flags: Any) -> GateRequest:
        """From a command's flags (None: not given), with the user's settings behind them."""
        settings = resolve(device=flags.pop("device"), size=flags.pop("size"))
        given = {name: value for name, value in flags.items() if value is not None}
        return cls(**given, device=settings.device_asked, size=settings.size_asked)

    @property
    def filters(self) -> Filters:
        return Filters(**{name: getattr(self, name) for name in Filters.model_fields})

    @property
    def limits(self) -> GateLimits:
        return GateLimits(**{name: getattr(self, name) for name in GateLimits.model_fields})


@dataclass(frozen=True)
class GateRun:
    """A report, and the head's task files for the history."""

    report: GateReport
    sources: tuple[Path, ...]


def run_gate(
    request: GateRequest,
    progress: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda text: None,
) -> GateRun:
    """Compare head and base. After Ctrl-C the rows so far, `complete=False`. `say` hears what is known before
    anything runs.

    UsageError: nothing to compare, or words that mean nothing. MachineError: the device is not there.
    BaselineError: a side does not even start.
    """
    kernels = KernelsRequest(
        device=request.device,
        size=request.size,
        budget_s=request.budget_s,
        timeout_s=request.timeout_s,
        compile_check=request.compile_check,
        attribution=False,  # a gate compares, and does not ask who wrote what
    )
    resolved = kernels.resolved()
    assert resolved.device
    assert resolved.contract
    assert resolved.size
    begin = time.monotonic()
    machine = environment(resolved.device)
    with opened(request.head, request.base, request.filters, resolved.size) as comparison:
        for note in comparison.notes:
            say(note)
        measured = Measurement(comparison, kernels, request.limits, progress)
        measured.measure()
    request = request.model_copy(update={"device": resolved.device, "budget_s": resolved.budget_s})
    report = _report(request, measured, machine, resolved.contract, time.monotonic() - begin)
    return GateRun(report, comparison.sources)


def _report(
    request: GateRequest, measured: Measurement, machine: Environment, contract: Contract, wall_s: float
) -> GateReport:
    comparison, limits = measured.comparison, measured.limits
    found = rows.rows(measured, contract)
    mean = verdicts.overall(found)
    elsewhere = reported.elsewhere(comparison.report, machine, contract)
    min_speedup = verdicts.reached(mean, limits.min_speedup)
    counts: dict[GateVerdict, int] = {
        verdict: sum(row.verdict == verdict for row in found) for verdict in get_args(GateVerdict)
    }
    return GateReport(
        schema=1,
        environment=machine.model_copy(update={"isolation": measured.isolation or machine.isolation}),
        request=request.model_dump(mode="json"),
        head=comparison.head,
        base=comparison.base,
        limits=limits,
        rows=tuple(found),
        notes=(*comparison.notes, *elsewhere, *measured.notes, *verdicts.unseen(found, limits)),
        outcome=verdicts.outcome(found, min_speedup, measured.complete),
        summary=GateSummary(
            verdicts=counts,
            geomean_speedup=mean[0] if mean else None,
            geomean_ci=mean[1] if mean else None,
            min_speedup=min_speedup,
            wall_s=wall_s,
        ),
        complete=measured.complete,
    )
