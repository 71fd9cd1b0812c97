"""A report of each kind, with passes, a held-out shape, a loss, a failure and an interruption to show."""

from __future__ import annotations

from typing import Any

import pytest

from fastkernels.measure.environment import environment
from fastkernels.records import (
    EvalReport,
    Failure,
    KernelReport,
    KernelRow,
    KernelSummary,
    Swap,
    WorkloadResult,
)
from fastkernels.score import calibrate
from fastkernels.score.macroeval import macroeval

FAILURE = Failure(
    message="out.0: relative L2 error 1 against float64",
    file="cand/L1/rms_norm.py",
    line=17,
    output="hello\nworld\n",
)


def row(case: str, **changes: Any) -> KernelRow:
    passed: dict[str, Any] = {
        "task": "L1/rms_norm", "variant": "default", "case": case, "candidate": "mine", "verdict": "PASSED",
        "contract": "host", "calls": 65, "speedup": 1.251, "speedup_ci": (1.241, 1.26), "baseline_us": 27.91,
        "candidate_us": 22.3, "baseline_impl": "rms_norm=torch", "noise_pct": 1.1, "significant": True,
        "samples": 40,
        "error_ratio": 0.51, "baseline_error": 0.0016, "candidate_error": 0.0016, "roofline_pct": 61.0,
    }  # fmt: skip
    return KernelRow(**{**passed, **changes})


def failed(case: str) -> KernelRow:
    return KernelRow(
        task="L1/rms_norm", variant="default", case=case, candidate="mine", verdict="WRONG(value)",
        failure=FAILURE, contract="host", error_ratio=300.0,
    )  # fmt: skip


@pytest.fixture
def kernel_report() -> KernelReport:
    rows = (
        row("tiny-T7-D64-f32"), row("tiny-T512-D64-f32", speedup=0.8, speedup_ci=(0.79, 0.81)),
        row("tiny-T8-D64-f32", speedup=1.001, speedup_ci=(0.99, 1.01), significant=False),
        row("tiny-T31-D64-f32", timed=False, speedup=None, speedup_ci=None, baseline_us=None,
        candidate_us=None,
            baseline_impl=None, noise_pct=None, significant=None, roofline_pct=None),
        failed("tiny-T64-D64-f32"),
        failed("tiny-T65-D64-f32"),
    )  # fmt: skip
    return KernelReport(
        environment=environment("cpu").model_copy(update={"isolation": ("processes", "home")}),
        request={"target": ["rms_norm"], "seed": 3}, rows=rows,
        shadowed=("cand/L1/glu.py is not reached by cand/L2/gated_mlp.py",),
        summary=KernelSummary(
            rows=6, passed=4, failed=2, unstable=0, geomean_speedup=1.0008, wall_s=12.3, measuring_share=0.82
        ),
    )  # fmt: skip


@pytest.fixture
def eval_report() -> EvalReport:
    workloads = (
        WorkloadResult(name="balanced", kind="throughput", unit="out tok/s", baseline=(100.0, 102.0, 98.0),
                       candidate=(110.0, 113.0, 108.0), throughput_ratio=1.1, ratio_ci=(1.09, 1.12)),
        WorkloadResult(name="single-request", kind="latency", unit="s", baseline=(1.0, 1.1), candidate=(0.05,
        0.055),
                       latency_ratio=20.0),
    )  # fmt: skip
    good = calibrate.model_result(
        model="llama", category="LLM", size="tiny", config="tiny", workloads=workloads, d=(0.0, 0.004),
        noise_d=((0.0,), (0.001,), (0.0,)), ruin_d=(0.98, 1.0), kl=1e-4,
        swap=Swap(sites=7, calls=91, by_task={"L1/rms_norm": (7, 91)}, unused=("L1/glu",), transfer=0.9),
    )  # fmt: skip
    bad = calibrate.failed_model(
        model="other", category="Vision", size="tiny", config="tiny", failure=FAILURE
    )
    return EvalReport(
        environment=environment("cpu"), request={"size": "tiny"}, candidates=("mine",), models=(good, bad),
        macroeval=macroeval([good, bad], resamples=50),
    )  # fmt: skip
