from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def program(monkeypatch) -> Callable[[str], ModuleType]:
    """A program as a module; its folder is on the path while the test runs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


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
def agreement(program) -> ModuleType:
    return program("agreement")


@pytest.fixture
def decode_step(program) -> ModuleType:
    return program("decode_step")


@pytest.fixture
def admission(program) -> ModuleType:
    return program("admission")
