"""A report of tests: what passed, what failed and why, what was left out and why."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.benchmarks.conftest import BENCHMARKS

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


@pytest.fixture
def reported(program, called, tmp_path) -> Callable[..., dict[str, Any]]:
    """The report on a file with these tests."""

    def report(tests: str, code: int, *flags: str, process: bool = False) -> dict[str, Any]:
        """`process`: from a process of its own."""
        file, out = tmp_path / "test_some.py", tmp_path / "out.json"
        file.write_text(tests)
        arguments = (
            str(file),
            *flags,
            "--out",
            str(out),
            "-p",
            "no:cacheprovider",
            "--import-mode=importlib",
        )
        if process:
            command = [sys.executable, str(BENCHMARKS / "gpu_tests.py"), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == code, done.stderr
        else:
            with pytest.raises(SystemExit) as end:
                called(program("gpu_tests"), *arguments)
            assert end.value.code == code
        return json.loads(out.read_text())

    return report


def test_outcomes_and_reasons(reported) -> None:
    report = reported(TESTS, 1)
    assert report["complete"]
    assert (report["passed"], report["failed"], report["skipped"]) == (2, 3, 1)
    said = {failure["test"].rpartition("::")[2]: failure["says"] for failure in report["failures"]}
    assert said == {
        "test_bad": "AssertionError: they are two",
        "test_without": "ValueError: no device",
        "test_with_an_end": "ValueError: not given back",
    }
    assert report["skips"] == [{"reason": "needs a GPU", "tests": 1}]


def test_processes_beside_each_other_report_as_one(reported) -> None:
    report = reported(TESTS, 1, "-n", "2", process=True)
    assert (report["passed"], report["failed"], report["skipped"]) == (2, 3, 1)
    assert len(report["failures"]) == 3


def test_what_was_interrupted_keeps_what_was_reached(reported) -> None:
    tests = "def test_first(): pass\ndef test_second(): raise KeyboardInterrupt\ndef test_third(): pass\n"
    report = reported(tests, 2)
    assert not report["complete"]
    assert (report["passed"], report["failed"]) == (1, 0)
