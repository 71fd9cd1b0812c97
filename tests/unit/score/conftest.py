"""Model results and reports to score."""

from __future__ import annotations

from typing import Any

import pytest

from fastkernels.measure.environment import environment
from fastkernels.records import EvalReport, ModelResult, Swap, WorkloadResult
from fastkernels.score import calibrate, macroeval

NOISE = ((0.0, 0.002), (0.001, 0.0), (0.004, 0.0))


def throughput(ratio: float, rounds: int = 5, name: str = "balanced") -> WorkloadResult:
    baseline = tuple(100.0 + i for i in range(rounds))
    return WorkloadResult(
        name=name, kind="throughput", unit="out tok/s", baseline=baseline,
        candidate=tuple(b * ratio for b in baseline), throughput_ratio=ratio,
    )  # fmt: skip


def latency(ratio: float, rounds: int = 5, name: str = "single-request") -> WorkloadResult:
    baseline = tuple(1.0 + i / 10 for i in range(rounds))
    return WorkloadResult(
        name=name, kind="latency", unit="s", baseline=baseline,
        candidate=tuple(b / ratio for b in baseline), latency_ratio=ratio,
    )  # fmt: skip


def result(**changes: Any) -> ModelResult:
    arguments: dict[str, Any] = {
        "model": "llama", "category": "LLM", "size": "tiny", "config": "tiny",
        "workloads": (throughput(1.21), latency(1.0)), "d": (0.0, 0.002, 0.01), "noise_d": NOISE,
        "ruin_d": (0.98, 1.0, 0.99), "swap": Swap(sites=3, calls=12),
    }  # fmt: skip
    return calibrate.model_result(**{**arguments, **changes})


@pytest.fixture(scope="session")
def report() -> EvalReport:
    models = (result(), result(model="other", category="Vision", workloads=(throughput(0.9), latency(0.8))))
    return EvalReport(
        environment=environment("cpu"), request={"self_test": False, "size": "tiny"}, candidates=("faster",),
        models=models, macroeval=macroeval.macroeval(models),
    )  # fmt: skip
