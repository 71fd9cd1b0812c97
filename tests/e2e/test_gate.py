"""`fk gate` with real processes, where no time decides: a revision that cannot be imported, one that runs its
own kernels, a graph that breaks, and signals. What times decide: test_gate_times.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.program import gate, settings
from tests.unit.gate.repositories import ROOT, git, make_repository

EXAMPLES = ROOT / "examples" / "candidates"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("broken", ["head", "base"])
def test_a_revision_that_cannot_be_imported(tmp_path: Path, broken: str) -> None:
    """A head is wrong by that, without a base there is no gate: it is said where, without a traceback."""
    package = "src/fastkernels/kernels/rms_norm.py"
    make_repository(tmp_path / "repository", {package: lambda code: f"{code}\nimport no_such_module\n"})
    head, base = ("second", "first") if broken == "head" else ("first", "second")
    words = [head, "--base", base, "--target", "rms_norm", "--case", "llama-tiny-T16-D64-f32"]
    code, report, printed = gate(tmp_path, *words, cwd=tmp_path / "repository")
    if broken == "head":
        assert {(row["verdict"], row["head"]) for row in report["rows"]} == {("BROKEN", "IMPORT_ERROR")}, (
            printed
        )
        assert report["rows"][0]["failure"]["file"].endswith(package)
        assert code == 1
    else:
        assert "kernels of the base cannot be imported: ModuleNotFoundError" in printed
        assert (code, report) == (3, {})


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize("first", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.whole)])
def test_signals_while_it_tidies_up_cost_no_report_and_leave_nothing(
    tmp_path: Path, interruptible: Callable[..., subprocess.Popen], first: signal.Signals
) -> None:
    """The first one stops the gate, and whoever sees nothing happen sends more."""
    place, path = tmp_path / "tmp", tmp_path / "report.json"
    place.mkdir()
    words = [str(EXAMPLES / "slower"), "--base", str(EXAMPLES / "faster"), "--case", "llama-tiny-T16-D64-f32"]
    command = [sys.executable, "-m", "fastkernels", "gate", *words, "--device", "cpu", "--budget", "60"]
    variables = {**os.environ, **settings(tmp_path), "TMPDIR": str(place)}
    process = interruptible([*command, "--json", str(path)], variables)
    deadline = time.monotonic() + 60
    while len([*place.glob("fk-worker-*")]) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) > 1
    process.send_signal(first)
    for again in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT) * 20:
        time.sleep(0.005)
        process.send_signal(again)
    _, told = process.communicate(timeout=60)
    assert "Traceback" not in told, told
    assert process.returncode == 130, told
    assert json.loads(path.read_text())["complete"] is False
    assert not [*place.iterdir()]
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


BREAKS = """
import torch

from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline


class RMSNorm(Baseline):
    def forward(self, x, residual=None):
        torch._dynamo.graph_break()
        return super().forward(x, residual)
"""


def test_a_head_that_breaks_the_compiled_graph(tmp_path: Path) -> None:
    for side, text in (("head", BREAKS), ("base", BREAKS.replace("torch._dynamo.graph_break()", "pass"))):
        file = tmp_path / side / "L1" / "rms_norm.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    words = [str(tmp_path / "head"), "--base", str(tmp_path / "base"), "--case", "llama-tiny-T16-D64-f32"]
    code, report, printed = gate(tmp_path, *words, "--budget", "0.1", "--compile-check")
    assert report, printed
    (row,) = report["rows"]
    assert (row["verdict"], row["head"]) == ("BROKEN", "PASSED"), printed
    assert [look["compile"] for look in row["looks"]] == ["graph break"] * 2
    assert "torch.compile takes the base, of the head it says graph break" in printed.replace("\n", " ")
    assert code == 1


def test_a_revision_runs_its_own_kernels(tmp_path: Path) -> None:
    """The second commit's rms_norm is 1 % too large: only the head is wrong: each side ran its own."""
    repository = tmp_path / "repository"
    file = "src/fastkernels/kernels/rms_norm.py"
    right, off = "weight_D, eps), sum_TD", "weight_D, eps) * 1.01, sum_TD"

    def wrong(code: str) -> str:
        assert right in code, "the kernel was written anew: change what is replaced"
        return code.replace(right, off)

    make_repository(repository, {file: wrong})
    words = ["second", "--base", "first", "--target", "rms_norm", "--case", "llama-tiny-T16-D64-residual-f32"]
    code, report, printed = gate(tmp_path, *words, cwd=repository)
    assert report, printed
    (row,) = report["rows"]
    assert (row["verdict"], row["head"], row["base"]) == ("BROKEN", "WRONG(value)", "PASSED")
    assert code == 1
    assert report["head"].startswith("second (")
    assert git(repository, "status", "--porcelain") == ""
