"""`fk eval` of candidates on a GPU: two engines on one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.e2e.program import assert_good, evaluate

ROOT = Path(__file__).parents[2]
LLAMA = ("--model", "llama", "--size", "tiny", "--device", "cuda", "--rounds", "2", "--workload", "balanced")

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


def test_an_honest_candidate_is_inside_and_right(tmp_path: Path) -> None:
    done, report = evaluate(
        tmp_path, *LLAMA, "--candidates", str(ROOT / "examples" / "candidates" / "faster")
    )
    assert_good(done, report)
    (model,) = report["models"]
    assert model["swap"]["sites"] == 7
    assert model["valid"]


def test_who_sets_a_part_of_the_cache_aside(tmp_path: Path) -> None:
    candidate = ROOT / "tests" / "candidates" / "cuda_pinned_lines"
    _, report = evaluate(tmp_path, *LLAMA, "--candidates", str(candidate))
    (model,) = report["models"]
    assert not model["valid"]
    message = model["failure"]["message"]
    assert "sets nothing aside" in message or "TAMPERED(global-state): persisting L2 bytes is" in message


def test_who_leaves_the_device_busy_in_the_baselines_turn(tmp_path: Path) -> None:
    candidate = ROOT / "tests" / "candidates" / "cuda_engine_runs_on"
    done, report = evaluate(tmp_path, *LLAMA, "--candidates", str(candidate))
    assert done.returncode == 1
    (model,) = report["models"]
    assert not model["valid"]
    assert "TAMPERED(pause): the process kept a GPU busy" in model["failure"]["message"]
