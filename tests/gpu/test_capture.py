"""Capture and replay on a GPU: the golden values of both devices, captured routing in CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastkernels.capture.comparison import compare
from fastkernels.capture.run import CaptureRequest, run_capture
from fastkernels.loader import golden
from fastkernels.loader.golden import PHASES
from fastkernels.runner.kernel_trial.request import KernelsRequest
from fastkernels.runner.kernel_trial.run import run_kernels

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


def capture(folder: Path, device: str) -> golden.GoldenValues:
    asked = {"model": "mixtral", "size": "tiny", "dtype": "float32", "requests": 4}
    run_capture(CaptureRequest(out=str(folder), device=device, **asked))
    return golden.read(str(folder))


def test_prompts_choose_the_experts_that_they_choose_on_a_cpu(tmp_path: Path) -> None:
    """Prompts are the same; continuations may part at a near tie."""
    on_cpu, on_gpu = capture(tmp_path / "cpu", "cpu"), capture(tmp_path / "gpu", "cuda")
    assert {phase: on_gpu.capture.tokens[phase] for phase in PHASES} == on_cpu.capture.tokens
    first, second = (values.of("prefill", "expert_ids").sort(-1).values for values in (on_cpu, on_gpu))
    assert (first == second).all(-1).float().mean() > 0.99
    same, total = compare(str(tmp_path / "cpu"), "cuda").same_choice
    assert same > 0.99 * total


def test_captured_routing_is_judged_in_graphs(tmp_path: Path) -> None:
    capture(tmp_path / "golden", "cuda")
    request = KernelsRequest(
        targets=("fused_experts", "moe_routing", "L2/moe"),
        size="tiny",
        golden=str(tmp_path / "golden"),
        case_glob="captured",
        device="cuda",
        contract="graph",
        self_test=True,
        budget_s=0.3,
    )
    report = run_kernels(request)
    assert {row.task for row in report.rows} == {"L2/fused_experts", "L1/moe_routing", "L2/moe"}
    assert {row.verdict for row in report.rows} <= {"PASSED", "UNSTABLE"}
    assert any("RANDOM weights" in note for note in report.notes)
