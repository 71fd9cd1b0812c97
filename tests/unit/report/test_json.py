"""report/json.py and report/schema.py: round trips, atomic writing, places of errors, the published
schema."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest

from fastkernels.errors import FileFormatError, UsageError
from fastkernels.records import KernelShare
from fastkernels.report import files, schema
from fastkernels.report import json as reports

ROOT = Path(__file__).parents[3]


def test_reports_come_back_as_they_were(kernel_report, eval_report, tmp_path):
    for report in (kernel_report, eval_report):
        path = tmp_path / "new folder" / f"{report.kind}.json"
        reports.write(report, path)
        assert reports.load(path) == report
        assert [p.name for p in path.parent.iterdir() if p.name.startswith(".")] == []


def test_the_fields_that_readers_rely_on(kernel_report, eval_report):
    kernels, evaluation = (json.loads(reports.dumps(report)) for report in (kernel_report, eval_report))
    assert {"kind", "schema", "environment", "rows", "summary"} <= kernels.keys()
    expected = "task variant case verdict contract speedup speedup_ci baseline_us candidate_us error_ratio"
    assert {*expected.split(), "roofline_pct", "capture", "compile"} <= kernels["rows"][0].keys()
    model = evaluation["models"][0]
    assert {
        "model",
        "category",
        "workloads",
        "correctness",
        "noise_floor",
        "valid",
        "speedup",
        "swap",
    } <= model.keys()
    assert model["workloads"][0]["throughput_ratio"] == pytest.approx(1.1, abs=0.01)
    assert {"sites", "calls"} <= model["swap"].keys()
    assert {"score", "speedup", "correctness", "coverage"} <= evaluation["macroeval"].keys()


def test_stdout(kernel_report, capsys):
    reports.write(kernel_report, "-")
    assert json.loads(capsys.readouterr().out)["kind"] == "kernels"


def test_a_failed_write_leaves_the_old_file(kernel_report, tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        reports.write(kernel_report, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_way_is_named(kernel_report, tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match=str(tmp_path)):
        reports.write(kernel_report, tmp_path / "taken")
    assert [place.name for place in tmp_path.iterdir()] == ["taken"]


def test_whether_a_report_can_be_written_is_asked_before_a_run(tmp_path):
    for good in ("-", tmp_path / "report.json", tmp_path / "new" / "folder" / "report.json"):
        files.require_writable(good, "--json")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").write_text("")
    for bad in ("", tmp_path, tmp_path / "file" / "report.json"):
        with pytest.raises(UsageError, match=f"--json '?{bad}"):
            files.require_writable(bad, "--json")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="a folder in which nobody makes files")
def test_a_file_system_that_takes_no_files_is_told_before_a_run(tmp_path):
    with pytest.raises(
        UsageError, match=r"--json /proc/new/report.json: nothing can be written into /proc \("
    ):
        files.require_writable("/proc/new/report.json", "--json")


@pytest.mark.parametrize(
    ("change", "line", "problem"),
    [
        (lambda s: s.replace('"kind": "eval",', '"kind": "eval"'), 3, "not JSON"),
        (lambda s: s[: len(s) // 2], None, "not JSON"),
        (lambda s: s.replace('"kind": "eval"', '"kind": "other"'), 1, "'other'"),
        (lambda s: "[]", 1, "not a report"),
        (lambda s: '{"kind": ["eval"]}', 1, "not a report"),
        (lambda s: s.replace('"schema": 1', '"schema": 2'), 3, "schema 2; this version of fk reads schema 1"),
        (lambda s: s.replace('"complete": true', '"complete": "maybe"'), None, "complete"),
        (lambda s: s.replace('"sites": 7', '"sites": "many"'), None, "models.0.swap.sites"),
        (lambda s: s.replace('"valid": true', '"valid": true, "extra": 1'), None, "models.0.extra"),
    ],
)
def test_corrupt_files_are_named_with_their_line(eval_report, tmp_path, change, line, problem):
    path = tmp_path / "bad.json"
    path.write_text(change(reports.dumps(eval_report)))
    with pytest.raises(FileFormatError) as raised:
        reports.load(path)
    assert str(path) in str(raised.value)
    assert problem in str(raised.value)
    assert raised.value.where.startswith("line ")
    if line is not None:
        assert raised.value.where == f"line {line}"


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "9" * 5000, "[" * 100_000])
def test_what_python_reads_or_chokes_on_is_no_report(eval_report, tmp_path, value):
    path = tmp_path / "bad.json"
    path.write_text(reports.dumps(eval_report).replace('"sites": 7', f'"sites": {value}'))
    with pytest.raises(FileFormatError, match="not JSON that a report can hold"):
        reports.load(path)


def test_the_line_is_that_of_the_wrong_value(eval_report, tmp_path):
    text = reports.dumps(eval_report).replace('"sites": 7', '"sites": "many"')
    path = tmp_path / "bad.json"
    path.write_text(text)
    expected = next(i for i, found in enumerate(text.splitlines(), 1) if '"sites": "many"' in found)
    with pytest.raises(FileFormatError, match=f"line {expected}:"):
        reports.load(path)


def test_line_of_a_missing_member_is_that_of_its_owner():
    text = '{\n "a": [1,\n  {"b": 2}\n ]\n}'
    assert reports.line_of(text, ("a", 1, "b")) == 3
    assert reports.line_of(text, ("a", 1, "missing")) == 3
    assert reports.line_of(text, ("a", 9)) == 2
    assert reports.line_of(text, ("a", "x")) == 2
    assert reports.line_of(text, ()) == 1


def test_missing_and_unreadable_files(tmp_path, kernel_report):
    with pytest.raises(FileFormatError, match="No such file"):
        reports.load(tmp_path / "none.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="not UTF-8 text"):
        reports.load(binary)
    reports.write(kernel_report, tmp_path / "kernels.json")
    with pytest.raises(FileFormatError, match="fk kernels"):
        reports.load_eval(tmp_path / "kernels.json")


@pytest.mark.parametrize("kind", ["kernels", "eval", "gate", "audit", "tuning"])
def test_the_published_schema_is_current(kind):
    """Renew with: fk schema kernels > docs/schema/kernels.json (and eval, gate, audit, tuning)."""
    assert (ROOT / "docs" / "schema" / f"{kind}.json").read_text() == schema.text(kind)


def test_kernels_by_name_obey_the_schema(kernel_report):
    named = {"kernels": (KernelShare(name="at::native::copy", origin="torch", share=1.0),)}
    first = kernel_report.rows[0].model_copy(update={"origins": {"torch": 1.0}, **named})
    report = kernel_report.model_copy(update={"rows": (first, *kernel_report.rows[1:])})
    data = json.loads(reports.dumps(report))
    jsonschema.validate(data, schema.schema("kernels"))
    assert data["rows"][0]["kernels"] == [{"name": "at::native::copy", "origin": "torch", "share": 1.0}]
    del data["rows"][0]["kernels"]  # a report from before
    jsonschema.validate(data, schema.schema("kernels"))


def test_reports_obey_the_schema(kernel_report, eval_report):
    for report in (kernel_report, eval_report):
        data = json.loads(reports.dumps(report))
        found = schema.schema(report.kind)
        jsonschema.Draft202012Validator.check_schema(found)
        jsonschema.validate(data, found)
        del data["environment"]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, found)
