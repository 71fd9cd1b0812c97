"""Rows of the report, from the outcome of a trial, and how far a candidate's claims are borne out."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from fastkernels.judge.verdict import Verdict
from fastkernels.layout import shown
from fastkernels.records import Contract, Failure, Integrity, KernelRow, Unclaimed
from fastkernels.registry.schema import TaskEntry
from fastkernels.runner.kernel_trial.bench import Outcome
from fastkernels.runner.kernel_trial.claim_checks import MIN_READINGS, Slack, Times
from fastkernels.runner.kernel_trial.request import Job, Work
from fastkernels.runner.kernel_trial.sampling import Sampled


def integrity(sampled: Sampled, slack: Slack, looks: tuple[int, int] | None = None) -> Integrity | None:
    """What the judge saw beside the claims; None of fewer calls than windows can be compared of. looks: at
    GPUs, busy ones and all."""
    blocks = sampled.blocks
    if len(blocks.c) < MIN_READINGS:
        return None
    times = Times.of(blocks.c, (blocks.a, blocks.a2))
    hidden_ns, most_ns = max(times.compared(slack), key=lambda pair: pair[0] - pair[1])
    c_us, a_us, a2_us = (float(np.median(column)) / 1e3 for column in times.windows)
    return Integrity(
        beyond_us=(c_us, a_us, a2_us),
        hidden_us=hidden_ns / 1e3,
        may_hide_us=most_ns / 1e3,
        alone_us=_medians_us(sampled.alone.of_sides(lambda reading: reading.ns)),
        walk_us=_medians_us(sampled.half.of_sides(lambda reading: reading.walk_ns)),
        looks=looks,
    )


def _medians_us(sides_ns: list[list[float]]) -> tuple[float, float, float] | None:
    if not all(sides_ns):
        return None
    c_us, a_us, a2_us = (median(side) / 1e3 for side in sides_ns)
    return c_us, a_us, a2_us


def row(
    job: Job, work: Work, verdict: Verdict, contract: Contract, outcome: Outcome | None = None
) -> KernelRow:
    facts: dict[str, Any] = {}
    if outcome is not None:
        contract = outcome.contract
        worst = outcome.worst
        facts = {
            "baseline_impl": " ".join(f"{k}={v}" for k, v in sorted(outcome.baseline_kernels.items()))
            or None,
            "error_ratio": worst.error_ratio if worst else None,
            "baseline_error": worst.baseline_error if worst else None,
            "candidate_error": worst.candidate_error if worst else None,
            "roofline_pct": outcome.roofline_pct,
            "capture": outcome.capture,
            "baseline_capture": outcome.baseline_capture,
            "capture_detail": outcome.capture_detail,
            "links": outcome.links,
            "sm_clock_mhz": outcome.clock_mhz,
            "integrity": outcome.integrity,
            "iterations_checked": outcome.checked,
        }
    if (speedup := verdict.speedup) is not None:
        facts |= {
            "speedup": speedup.ratio,
            "speedup_ci": (speedup.low, speedup.high),
            "baseline_us": speedup.baseline_us,
            "candidate_us": speedup.candidate_us,
            "baseline_p20_p80_us": speedup.baseline_p20_p80_us,
            "candidate_p20_p80_us": speedup.candidate_p20_p80_us,
            "noise_pct": speedup.noise_pct,
            "significant": speedup.significant,
            "samples": speedup.samples,
            "dropped": speedup.dropped,
        }
    if (seen := verdict.unclaimed) is not None:
        facts["unclaimed"] = Unclaimed(
            speedup=seen.ratio,
            speedup_ci=(seen.low, seen.high),
            baseline_us=seen.baseline_us,
            candidate_us=seen.candidate_us,
            noise_pct=seen.noise_pct,
            samples=seen.samples,
            waits=seen.waits,
        )
    failure = verdict.failure
    if failure is not None and failure.file is None and work.entry.id in job.files:
        failure = failure.model_copy(update={"file": str(job.files[work.entry.id])})
    if failure is not None and failure.file is not None:
        failure = failure.model_copy(update={"file": shown(failure.file)})
    return KernelRow(
        task=work.entry.id,
        variant=work.case.variant,
        case=work.case.id,
        candidate=job.name,
        verdict=verdict.label,
        failure=failure,
        contract=contract,
        calls=work.case.calls,
        timed=work.case.timed,
        **facts,
    )


def unavailable_row(job: Job, entry: TaskEntry, reason: str, contract: Contract) -> KernelRow:
    """An implementation that no case of a task can use here."""
    variant = next(iter(entry.variants))
    return KernelRow(
        task=entry.id,
        variant=variant,
        case="*",
        candidate=job.name,
        verdict="UNSUPPORTED",
        failure=Failure(message=reason),
        contract=contract,
        timed=False,
    )
