"""From a checkpoint to a comparison as a user does it: capture, replay, comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_folders import skewed_checkpoint

pytestmark = pytest.mark.slow


def fk(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "FK_STATE_DIR": str(folder), "FK_TRACKING": "false", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "fastkernels", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )


def test_a_checkpoint_is_captured_replayed_and_compared(tmp_path: Path) -> None:
    skewed_checkpoint(tmp_path / "model")
    captured = fk(
        tmp_path, "capture", "--model", "model", "--out", "golden", "--size", "tiny", "--device", "cpu"
    )
    assert captured.returncode == 0, captured.stderr
    judged = fk(
        tmp_path, "kernels", "--golden", "golden", "--self-test", "--device", "cpu", "--json", "report.json",
        "--target", "fused_experts", "--target", "moe_routing", "--case", "*T128-*", "--budget", "0.5",
    )  # fmt: skip
    assert judged.returncode in (0, 3), judged.stderr  # 3: a busy machine gives unstable ratios
    report = json.loads((tmp_path / "report.json").read_text())
    assert {row["verdict"] for row in report["rows"]} <= {"PASSED", "UNSTABLE"}
    skews = ("-f32", "-captured-f32", "-zipf-f32")
    cases = [row["case"] for row in report["rows"] if row["task"] == "L2/fused_experts"]
    assert [case.partition("F160")[2] for case in cases] == [*skews]
    assert report["request"]["golden"] == "golden"
    assert "captured routing: model (mixtral)" in report["notes"][0]
    if judged.returncode == 0:
        compared = fk(tmp_path, "capture", "--golden", "golden", "--times", "report.json", "--device", "cpu")
        assert compared.returncode == 0, compared.stderr
        times = compared.stdout.partition("\nTimes\n")[2]
        assert "L2/fused_experts" in times
        assert "L1/moe_routing" in times


@pytest.fixture(scope="module")
def captured(tmp_path_factory) -> Path:
    """Where a golden folder of the tiny model lies."""
    folder = tmp_path_factory.mktemp("captured")
    asked = ("--model", "mixtral", "--out", "golden", "--size", "tiny", "--device", "cpu", "--requests", "1")
    assert fk(folder, "capture", *asked).returncode == 0
    return folder


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("--golden nowhere --target moe", "nowhere is no golden folder"),
        ("--golden golden --target rms_norm", "nothing in the cases asked for chooses experts"),
        ("--golden golden --target moe --size full", "choose 2 of 4 experts"),
        ("--golden golden --target moe --case mixtral-tiny-T128-E4-captured-f32", "Did you mean mixtral"),
    ],
)
def test_what_cannot_be_replayed_is_a_usage_error(asked: str, message: str, captured: Path) -> None:
    done = fk(captured, "kernels", "--self-test", "--device", "cpu", *asked.split())
    assert done.returncode == 2
    assert message in done.stderr
