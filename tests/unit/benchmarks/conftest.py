from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fastkernels import registry
from fastkernels.records import KernelReport
from fastkernels.report.json import load_kernels

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def program(monkeypatch) -> Callable[[str], ModuleType]:
    """A program as a module; its folder is on the path while the test runs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture(scope="session")
def whole() -> KernelReport:
    """A whole self-test: of rms_norm, on an H200; of its rows those of cases that are still registered."""
    report = load_kernels(BENCHMARKS / "h200" / "self_test_rms_norm.json")
    known = {case.id for case in registry.cases("L1/rms_norm")}
    return report.model_copy(update={"rows": tuple(row for row in report.rows if row.case in known)})


@pytest.fixture
def vs_reference(program) -> ModuleType:
    return program("vs_reference")


@pytest.fixture
def vs_vllm(program) -> ModuleType:
    return program("vs_vllm")


@pytest.fixture
def run_all(program) -> ModuleType:
    return program("run_all")


@pytest.fixture
def jobs(program) -> ModuleType:
    return program("jobs")


@pytest.fixture
def agreement(program) -> ModuleType:
    return program("agreement")


@pytest.fixture
def decode_step(program) -> ModuleType:
    return program("decode_step")


@pytest.fixture
def admission(program) -> ModuleType:
    return program("admission")


@pytest.fixture
def called(monkeypatch) -> Callable[..., None]:
    """`python PROGRAM ARGUMENTS`, in this process: PyTorch is there already."""

    def call(program: ModuleType, *arguments: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [str(program.__file__), *arguments])
            program.main()

    return call


@pytest.fixture
def side_here(called, tmp_path) -> Callable[..., dict[str, Any]]:
    """In place of `comparison.in_a_process`: what a side finds that a program runs in this process."""

    def find(program: str, arguments: list[str], *_: Path | None) -> dict[str, Any]:
        result = tmp_path / "side.json"
        called(sys.modules[Path(program).stem], *arguments, "--result", str(result))
        return json.loads(result.read_text())

    return find
