"""`fk gate` on a GPU: identical code passes, a slower head fails, in the graph contract."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fastkernels.gate.gate import GateRequest, run_gate

SLOWER = Path(__file__).parents[2] / "examples" / "candidates" / "slower"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_identical_and_slower_code(tmp_path: Path) -> None:
    shutil.copytree(SLOWER, tmp_path / "slower")
    words = {"device": "cuda", "size": "tiny", "targets": ("rms_norm",), "case_glob": "T16-D64"}
    same = run_gate(GateRequest(head=str(SLOWER), base=str(tmp_path / "slower"), **words)).report
    assert {row.contract for row in same.rows} == {"graph"}
    assert {row.verdict for row in same.rows} == {"SAME"}
    worse = run_gate(GateRequest(head=str(SLOWER), **words)).report
    assert {row.verdict for row in worse.rows} == {"SLOW"}
    assert worse.outcome == "failed"
