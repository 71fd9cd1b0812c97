"""`fk gate` on a GPU: identical code passes, a slower head fails, in the graph contract."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fastkernels.gate.gate import GateRequest, run_gate

SLOWER = Path(__file__).parents[2] / "examples" / "candidates" / "slower"

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


WAITS = """
from torch import Tensor

from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline


class RMSNorm(Baseline):
    def forward(self, x: Tensor, residual: Tensor | None = None):
        x.sum().item()  # the host waits: no CUDA graph can hold that
        return super().forward(x, residual)
"""


def test_a_head_that_cannot_be_captured_any_more(tmp_path: Path) -> None:
    file = tmp_path / "waits" / "L1" / "rms_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text(WAITS)
    words = {"device": "cuda", "size": "tiny", "case_glob": "llama-tiny-T16-D64-f32"}
    (row,) = run_gate(GateRequest(head=str(tmp_path / "waits"), base=str(SLOWER), **words)).report.rows
    assert row.verdict == "BROKEN", row.reason
    assert "the base can be captured in a CUDA graph, the head cannot" in row.reason
    assert {(look.base_capture, look.head_capture) for look in row.looks} == {("yes", "no")}
    (row,) = run_gate(GateRequest(head=str(SLOWER), base=str(tmp_path / "waits"), **words)).report.rows
    assert row.verdict != "BROKEN", "the other way round it is no loss"


def test_identical_and_slower_code(tmp_path: Path) -> None:
    shutil.copytree(SLOWER, tmp_path / "slower")
    words = {"device": "cuda", "size": "tiny", "targets": ("rms_norm",), "case_glob": "T16-D64"}
    same = run_gate(GateRequest(head=str(SLOWER), base=str(tmp_path / "slower"), **words)).report
    assert {row.contract for row in same.rows} == {"graph"}
    assert {row.verdict for row in same.rows} == {"SAME"}
    worse = run_gate(GateRequest(head=str(SLOWER), **words)).report
    assert {row.verdict for row in worse.rows} == {"SLOW"}
    assert worse.outcome == "failed"
