"""From a checkpoint to a comparison as a user does it: capture, replay, comparison."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.program import Run, called, started
from tests.golden_folders import skewed_checkpoint

pytestmark = pytest.mark.slow


def test_a_checkpoint_is_captured_replayed_and_compared(tmp_path: Path) -> None:
    skewed_checkpoint(tmp_path / "model")
    fk = partial(called, tmp_path, cwd=tmp_path)
    asked = ("--model", "model", "--out", "golden", "--size", "tiny", "--device", "cpu")
    captured = started(tmp_path, "capture", *asked, cwd=tmp_path)
    assert captured.returncode == 0, captured.stderr
    judged = fk(
        "kernels", "--golden", "golden", "--self-test", "--device", "cpu", "--json", "report.json",
        "--target", "fused_experts", "--target", "moe_routing", "--case", "*T128-*", "--budget", "0.5",
        "--architecture", "mixtral",
    )  # fmt: skip
    report = json.loads((tmp_path / "report.json").read_text())
    assert {row["verdict"] for row in report["rows"]} <= {"PASSED", "UNSTABLE"}, report["rows"]
    assert judged.returncode in (0, 3), judged.stderr  # 3: a busy machine gives unstable ratios
    skews = ("-f32", "-captured-f32", "-zipf-f32")
    cases = [row["case"] for row in report["rows"] if row["task"] == "L2/fused_experts"]
    assert [case.partition("F160")[2] for case in cases] == [*skews]
    assert report["request"]["golden"] == "golden"
    assert "captured routing: model (mixtral)" in report["notes"][0]
    if judged.returncode == 0:
        compared = fk("capture", "--golden", "golden", "--times", "report.json", "--device", "cpu")
        assert compared.returncode == 0, compared.stderr
        times = compared.stdout.partition("\nTimes\n")[2]
        assert "L2/fused_experts" in times
        assert "L1/moe_routing" in times


@pytest.fixture(scope="module")
def captured(tmp_path_factory) -> Path:
    """Where a golden folder of the tiny model lies."""
    folder = tmp_path_factory.mktemp("captured")
    asked = ("--model", "mixtral", "--out", "golden", "--size", "tiny", "--device", "cpu", "--requests", "1")
    assert called(folder, "capture", *asked, cwd=folder).returncode == 0
    return folder


@pytest.mark.parametrize(
    ("asked", "message", "run"),
    [
        ("--golden nowhere --target moe", "nowhere is no golden folder", started),
        ("--golden golden --target rms_norm", "nothing in the cases asked for chooses experts", called),
        ("--golden golden --target moe --size full", "choose 2 of 4 experts", called),
        (
            "--golden golden --target moe --case mixtral-tiny-T128-E4-captured-f32",
            "Did you mean mixtral",
            called,
        ),
    ],
)
def test_what_cannot_be_replayed_is_a_usage_error(asked: str, message: str, run: Run, captured: Path) -> None:
    done = run(captured, "kernels", "--self-test", "--device", "cpu", *asked.split(), cwd=captured)
    assert done.returncode == 2
    assert message in done.stderr
