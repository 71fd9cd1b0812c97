"""`fk score` and `fk schema` as a user calls them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fastkernels.report import json as reports
from fastkernels.report import schema


def fk(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastkernels", *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def path(eval_report, tmp_path) -> str:
    reports.write(eval_report, tmp_path / "eval.json")
    return str(tmp_path / "eval.json")


def test_score_recomputes_and_writes(path, eval_report, tmp_path):
    done = fk(
        "score",
        path,
        "--empty-family",
        "drop",
        "--f",
        "0.5",
        "--lambda",
        "1",
        "--json",
        str(tmp_path / "new.json"),
    )
    assert (done.returncode, done.stderr) == (1, ""), "one of its models failed"
    assert "MacroEval" in done.stdout
    new = reports.load_eval(tmp_path / "new.json")
    assert new.models[0].ruin_point == 0.5
    assert new.macroeval.speedup == pytest.approx(eval_report.models[0].throughput_speedup)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 0),
        ({"ratio_ci": (0.5, 2.0), "baseline": (1.0, 2.0, 0.5), "candidate": (1.0, 1.0, 1.0)}, 3),
        ({"audited_d": (1.0, 1.0)}, 1),
    ],
    ids=["good", "unstable", "wrong"],
)
def test_the_exit_code_of_score_is_that_of_the_run(change, code, eval_report, tmp_path):
    model = eval_report.models[0]
    changed = model.workloads[0].model_copy(update=change)
    one = eval_report.model_copy(
        update={"models": (model.model_copy(update={"workloads": (changed, *model.workloads[1:])}),)}
    )
    reports.write(one, tmp_path / "one.json")
    assert fk("score", str(tmp_path / "one.json")).returncode == code


def test_score_to_stdout_is_json_alone(path):
    done = fk("score", path, "--json", "-")
    assert json.loads(done.stdout)["kind"] == "eval"
    assert "MacroEval" in done.stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [("{\n oops", "bad.json, line 2"), ('{"kind": "eval"}', "bad.json, line 1: environment: Field required")],
)
def test_a_bad_file_is_a_usage_error_with_its_line(tmp_path, content, told):
    (tmp_path / "bad.json").write_text(content)
    done = fk("score", str(tmp_path / "bad.json"))
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_score_without_files_and_with_missing_ones(tmp_path):
    assert fk("score").returncode == 2
    done = fk("score", str(tmp_path / "none.json"))
    assert done.returncode == 2
    assert "none.json: No such file or directory. Name a report that `fk` wrote" in done.stderr
    (tmp_path / "binary.json").write_bytes(b"\xff")
    assert "binary.json: not UTF-8 text. Name a report" in fk("score", str(tmp_path / "binary.json")).stderr


def test_score_imports_no_torch(path):
    code = (
        "import sys, pytest; from fastkernels.cli.score import command\n"
        f"with pytest.raises(SystemExit): command([{path!r}], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules or 'mlflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", ["kernels", "eval", "audit"])
def test_schema_is_printed(kind):
    done = fk("schema", kind)
    assert done.returncode == 0
    assert done.stdout == schema.text(kind)
    assert fk("schema", "other").returncode == 2
