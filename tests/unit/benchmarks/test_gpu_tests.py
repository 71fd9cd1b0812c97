"""A report of tests: what passed, what failed and why, what was left out and why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TESTS = """
import pytest

@pytest.fixture
def broken():
    raise ValueError("no device")

@pytest.fixture
def breaks_later():
    yield
    raise ValueError("not given back")

@pytest.mark.parametrize("n", [1, 2])
def test_good(n): pass

def test_bad(): assert 1 + 1 == 3, "they are two"

def test_without(broken): pass

def test_with_an_end(breaks_later): pass

@pytest.mark.skip(reason="needs a GPU")
def test_left(): pass
"""


def reported(folder: Path, tests: str, *flags: str) -> tuple[int, dict[str, Any]]:
    file, out = folder / "test_some.py", folder / "out.json"
    file.write_text(tests)
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "gpu_tests.py"),
        str(file),
        *flags,
        "--out",
        str(out),
    ]
    done = subprocess.run([*command, "-p", "no:cacheprovider"], capture_output=True, text=True, check=False)
    assert out.is_file(), done.stderr
    return done.returncode, json.loads(out.read_text())


def test_outcomes_and_reasons(tmp_path: Path) -> None:
    code, report = reported(tmp_path, TESTS)
    assert code == 1
    assert report["complete"]
    assert (report["passed"], report["failed"], report["skipped"]) == (2, 3, 1)
    said = {failure["test"].rpartition("::")[2]: failure["says"] for failure in report["failures"]}
    assert said == {
        "test_bad": "AssertionError: they are two",
        "test_without": "ValueError: no device",
        "test_with_an_end": "ValueError: not given back",
    }
    assert report["skips"] == [{"reason": "needs a GPU", "tests": 1}]


def test_processes_beside_each_other_report_as_one(tmp_path: Path) -> None:
    _, report = reported(tmp_path, TESTS, "-n", "2")
    assert (report["passed"], report["failed"], report["skipped"]) == (2, 3, 1)
    assert len(report["failures"]) == 3


def test_what_was_interrupted_keeps_what_was_reached(tmp_path: Path) -> None:
    tests = "def test_first(): pass\ndef test_second(): raise KeyboardInterrupt\ndef test_third(): pass\n"
    code, report = reported(tmp_path, tests)
    assert code == 2
    assert not report["complete"]
    assert (report["passed"], report["failed"]) == (1, 0)
