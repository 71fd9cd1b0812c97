from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def vs_reference(monkeypatch) -> ModuleType:
    """The program as a module; its folder is on the path while the test runs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("vs_reference")


@pytest.fixture
def vs_vllm(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("vs_vllm")


@pytest.fixture
def run_all(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("run_all")


@pytest.fixture
def agreement(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("agreement")


@pytest.fixture
def decode_step(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("decode_step")
