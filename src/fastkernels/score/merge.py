"""Several reports of `fk eval` as one: other models in each, or other workloads of one model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastkernels.errors import UsageError
from fastkernels.measure.parts import require_one_machine
from fastkernels.records import EvalReport, ModelResult
from fastkernels.score import calibrate


def merge(reports: Sequence[EvalReport]) -> EvalReport:
    """Several reports as one: all their models. UsageError where they do not belong together.

    They must come from the same device, all with candidates or all self-tests. A model may be in several of
    them, with other workloads in each: parts of one evaluation, on machines and versions that are equal.
    """
    first = reports[0]
    for other in reports[1:]:
        if other.environment.device != first.environment.device:
            raise UsageError(
                f"Reports of different devices: {first.environment.device}, {other.environment.device}"
            )
        if bool(other.candidates) != bool(first.candidates):
            raise UsageError("A self-test and a report with candidates cannot be scored together")
    parts: dict[tuple[str, str, str], list[tuple[EvalReport, ModelResult]]] = {}
    for report in reports:
        for model in report.models:
            parts.setdefault((model.model, model.config, model.size), []).append((report, model))
    return first.model_copy(update={
        "models": tuple(_joined(of_one) for of_one in parts.values()),
        "candidates": tuple(dict.fromkeys(name for report in reports for name in report.candidates)),
        "complete": all(report.complete for report in reports),
        **{
            field: {
                model: why
                for report in reports
                for model, why in getattr(report, field).items()
                if model not in {evaluated for evaluated, _, _ in parts}
            }
            for field in ("unevaluated", "skipped")
        },
        "unfinished": tuple(model for report in reports for model in report.unfinished),
    })  # fmt: skip


def _joined(parts: Sequence[tuple[EvalReport, ModelResult]]) -> ModelResult:
    """One model from its parts: their workloads, samples and noise runs together, scored by `rescore`."""
    report, first = parts[0]
    if len(parts) == 1:
        return first
    models = [model for _, model in parts]
    for other, _ in parts[1:]:
        require_one_machine(report.environment, other.environment)
        if other.candidates != report.candidates:
            raise UsageError(f"{first.model}: parts of one evaluation have the same candidates")
    names = [workload.name for model in models for workload in model.workloads]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"In more than one report: {first.model} ({first.config}): {', '.join(twice)}")
    if failed := next((model for model in models if model.failure is not None), None):
        return failed
    observed = []
    for model in models:
        with calibrate.recorded(model):
            observed.append(calibrate.observed_notes(model, not report.candidates))
    samples = [len(model.d) for model in models]
    kls = [model.kl for model in models if model.kl is not None]
    return first.model_copy(update={
        "workloads": tuple(workload for model in models for workload in model.workloads),
        "d": tuple(d for model in models for d in model.d),
        "noise_d": tuple(run for model in models for run in model.noise_d),
        "ruin_d": tuple(d for model in models for d in model.ruin_d),
        "kl": float(np.average(kls, weights=samples)) if len(kls) == len(models) else None,
        "notes": tuple(dict.fromkeys(note for notes in observed for note in notes)),
    })  # fmt: skip
