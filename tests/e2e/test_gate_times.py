"""`fk gate` with real processes: a slower head fails, the same code passes, a revision runs its own code."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from tests.e2e.program import gate, started
from tests.unit.gate.repositories import ROOT, git, make_repository

EXAMPLES = ROOT / "examples" / "candidates"

pytestmark = pytest.mark.slow


def test_a_slower_and_an_identical_head(tmp_path: Path) -> None:
    """One gate with two pairs: `worse` was the fast example and is now the slow one, `same` stayed."""
    for side, worse in (("base", "faster"), ("head", "slower")):
        shutil.copytree(EXAMPLES / worse, tmp_path / side / "worse")
        shutil.copytree(EXAMPLES / "faster", tmp_path / side / "same")
    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    words = [str(tmp_path / "head"), "--base", str(tmp_path / "base"), "--case", "llama-tiny-T16-D64-f32"]
    files = ["--junit", str(junit), "--markdown", str(markdown)]
    code, report, printed = gate(tmp_path, *words, "--budget", "0.5", *files, run=started)
    assert report, printed
    rows = {row["candidate"]: row for row in report["rows"]}
    looks = rows["worse"]["looks"]
    assert len(looks) >= 2, f"it must reproduce in fresh processes: {printed}"
    assert all(look["speedup"] < 0.7 for look in looks if look["speedup"])
    busy = sum(look["speedup"] is None for look in looks)  # too busy a machine to say how fast
    assert rows["worse"]["verdict"] == "SLOW" or (rows["worse"]["verdict"] == "AMBIGUOUS" and busy), printed
    assert rows["same"]["verdict"] not in ("SLOW", "FAST"), printed
    assert rows["same"]["verdict"] == "SAME" or len(rows["same"]["looks"]) == 3, printed
    assert code == (1 if rows["worse"]["verdict"] == "SLOW" else 3)
    assert xml.parse(junit).getroot().get("failures") == str(int(code == 1))
    assert f"**{rows['worse']['verdict']}**" in markdown.read_text()


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
