"""`fk gate` with real processes: a slower head fails, the same code passes."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from tests.e2e.program import gate, started
from tests.unit.gate.repositories import ROOT

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
