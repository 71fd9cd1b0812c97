"""scripts/build_benchmarks_page.py: the committed page is what the committed reports say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from fastkernels.errors import FileFormatError
from fastkernels.report import json as reports

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "build_benchmarks_page", ROOT / "scripts/build_benchmarks_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_is_current(script):
    """Renew with: make docs"""
    for file, text in script.written(script.read(script.REPORTS)).items():
        assert file.read_text(encoding="utf-8") == text, file


def test_the_page_holds_every_report(script, kernel_report, eval_report, tmp_path):
    gpu = kernel_report.environment.model_copy(update={"device": "NVIDIA H200", "device_type": "cuda"})
    reports.write(kernel_report.model_copy(update={"environment": gpu}), tmp_path / "h200" / "kernels.json")
    reports.write(eval_report, tmp_path / "cpu" / "eval.json")
    of_cpu, of_gpu = script.page(script.read(tmp_path)).split("## NVIDIA H200")
    assert f"## {eval_report.environment.device}\n\n**{script.CPU_WARNING}.**" in of_cpu
    assert "| cpu/eval.json |" in of_cpu
    assert f"MacroEval {eval_report.macroeval.score:.4f}" in of_cpu
    assert "balanced 1.102" in of_cpu
    assert "| h200/kernels.json |" in of_gpu
    assert "4 of 6 trials passed; mine, host: 1.001 (0.800 .. 1.251, 3 cases)" in of_gpu
    assert script.CPU_WARNING not in of_gpu


def test_ratios_that_todays_rules_deny_are_left_out(script, kernel_report, tmp_path):
    """Reports from before the bound of eager hold 1.212 and 1.266 of identical code."""
    eager = {"contract": "eager", "speedup": 1.212, "noise_pct": 8.84}
    rows = (kernel_report.rows[0], kernel_report.rows[0].model_copy(update=eager))
    reports.write(kernel_report.model_copy(update={"rows": rows}), tmp_path / "kernels.json")
    text = script.page(script.read(tmp_path))
    assert "mine, host: 1.251 (1.251 .. 1.251, 1 cases)" in text
    assert "eager" not in text
    assert "1.212" not in text


def test_the_page_is_short(script):
    assert len(script.PAGE.read_text(encoding="utf-8").splitlines()) <= 200


def test_no_reports_make_an_empty_page(script, tmp_path):
    assert "No report yet" in script.page(script.read(tmp_path))


def test_a_corrupt_report_is_named(script, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"bad.json, line 1"):
        script.read(tmp_path)


def test_the_page_has_a_table_of_what_the_tests_take(script, kernel_report, tmp_path):
    row = {"group": "unit/gate", "tests": 4, "share_s": 40.04, "cpu_s": 30.0, "share_s_at_48": 240.0}
    show = {"kind": "test-seconds", "minutes": 5.01, "minutes_at_48": 9.0, "rows": [row]}
    environment = kernel_report.environment.model_dump()
    (tmp_path / "tests.json").write_text(json.dumps({**show, "environment": environment}))
    _, chapter = script.page(script.read(tmp_path)).split("## What `make test` takes")
    assert "\n\n5.0 minutes on " in chapter
    assert "; 9.0 with 48 architectures" in chapter
    assert "| unit/gate | 4 | 40.0 | 30.0 | 240.0 |" in chapter


def test_the_page_shows_what_other_programs_wrote(script, kernel_report, tmp_path):
    environment = kernel_report.environment.model_dump()
    rows = [{"kernel": "glu", "graph_us": 10.71234, "agrees": True}]
    show = {"kind": "agreement", "worst": None, "ratios": {"balanced": 1.25}, "rows": rows}
    (tmp_path / "a.json").write_text(json.dumps({**show, "environment": environment}))
    text = script.page(script.read(tmp_path))
    assert "ratios: balanced 1.25; 1 rows" in text
    (tmp_path / "a.json").write_text(json.dumps(show))
    with pytest.raises(FileFormatError, match=r"a.json, environment"):
        script.read(tmp_path)
