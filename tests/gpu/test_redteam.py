"""The attacks of tests/candidates that need CUDA. Written without a GPU at hand: a verdict that differs
here may be the test's mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

CANDIDATES = Path(__file__).parents[1] / "candidates"
EXPECTED = yaml.safe_load((CANDIDATES / "expected.yaml").read_text())
ATTACKS = [name for name, expected in EXPECTED.items() if expected.get("device") == "cuda"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_a_device_get_their_verdict(tmp_path: Path, name: str) -> None:
    path = tmp_path / "report.json"
    options = ["--device", "cuda", "--case", "llama-8b-T512-D4096-bf16", "--budget", "1"]
    options += ["--candidates", str(CANDIDATES / name), "--json", str(path), "--no-compile-check"]
    subprocess.run(
        [sys.executable, "-m", "fastkernels", "kernels", *options],
        env={**os.environ, "FK_STATE_DIR": str(tmp_path), "FK_TRACKING": "false"},
        check=False,
    )
    (row,) = json.loads(path.read_text())["rows"]
    expected = EXPECTED[name]
    assert row["verdict"].startswith(expected["verdict"]), row["failure"]
    if expected.get("slower"):
        assert row["speedup"] < 0.5
