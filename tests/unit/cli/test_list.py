from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fastkernels import registry
from fastkernels.cli import main, output


def fk(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["list", *arguments])


def rows(*arguments: str) -> list[dict]:
    result = fk(*arguments, "--json", "-")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["rows"]


def test_tasks_are_the_default() -> None:
    assert [row["task"] for row in rows()] == [entry.id for entry in registry.tasks()]
    assert rows() == rows("tasks")


@pytest.mark.parametrize(
    "arguments",
    [["L1/rms_nor?"], ["tasks", "L1/rms_nor?"], ["tasks", "rms_norm"], ["rms_nor?", "--level", "1"]],
)
def test_patterns(arguments: list[str]) -> None:
    (row,) = rows(*arguments)
    assert row["task"] == "L1/rms_norm"
    assert 0 < row["timed"] < row["cases"] == len(registry.cases("L1/rms_norm"))


def test_plain_text_in_a_pipe_is_not_cut() -> None:
    result = fk()
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["task", "variants", "cases", "timed", "summary"]
    assert len(lines) == 1 + len(registry.tasks())
    assert any(registry.task("L1/prefill_attention").summary in line for line in lines)
    assert "\x1b" not in result.stdout


def test_a_row_has_one_line_of_a_terminal() -> None:
    rows = [["name", "count", "text"], ["a", "12", "word " * 40], ["b", "3", "short"]]
    cut, is_cut = output._cut(rows, [False, True, False], 60)
    assert len("name") + len("count") + len(cut[0][2]) + 3 * 2 == 60
    assert is_cut
    assert cut[0][2].endswith("…")
    assert cut[1] == rows[2]
    assert output._cut(rows, [False, True, False], 300) == (rows[1:], False)


def test_architectures_and_map() -> None:
    found = [row["architecture"] for row in rows("architectures", "--category", "dense")]
    assert {"llama", "mixtral"} <= set(found)
    mapped = rows("--map")
    for architecture, row in zip(registry.architectures(), mapped, strict=True):
        assert row["tasks"] == [entry.id for entry in registry.find_tasks(architecture=architecture.id)]
    assert "decoder_layer" in fk("--map").stdout


def test_workloads() -> None:
    found = rows("workloads", "balanced")
    assert [(row["size"], row["requests"]) for row in found] == [("full", 1000), ("tiny", 32)]
    assert "default" in found[0]["suites"]


def test_candidates(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "L1").mkdir(parents=True)
        (tmp_path / name / "L1" / "rms_norm.py").write_text("class RMSNorm: ...\n")
    found = rows("candidates", "--candidates", str(tmp_path))
    assert [(row["candidate"], row["tasks"]) for row in found] == [
        ("one", ["L1/rms_norm"]),
        ("two", ["L1/rms_norm"]),
    ]
    assert [row["candidate"] for row in rows("candidates", "two", "--candidates", str(tmp_path))] == ["two"]
    assert fk("candidates", "thre", "--candidates", str(tmp_path)).exit_code == 2


def test_json_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    assert fk("--json", str(path)).stdout == ""
    assert json.loads(path.read_text())["kind"] == "tasks"
    inside = tmp_path / "new" / "tasks.json"
    assert fk("--json", str(inside)).exit_code == 0
    assert inside.read_text() == path.read_text()
    for wrong, told in (
        (path / "x.json", "nothing can be written into"),
        ("", "name a file, or - for stdout"),
    ):
        result = fk("--json", str(wrong))
        assert result.exit_code == 2
        assert told in result.stderr


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["rmsnorm"], "L1/rms_norm"),
        (["task", "x"], "tasks"),
        (["architectures", "lama"], "llama"),
        (["workloads", "balancd"], "balanced"),
        (["--architecture", "lama"], "llama"),
    ],
)
def test_bad_names(arguments: list[str], near: str) -> None:
    result = fk(*arguments)
    assert result.exit_code == 2
    assert f"Did you mean {near}" in result.stderr
    assert result.stdout == ""


def test_a_word_that_is_like_nothing_may_be_meant_for_a_kind() -> None:
    assert "Kinds: tasks, architectures, workloads, candidates" in fk("foo").stderr
    assert "No task 'foo'. See: fk list tasks" in fk("tasks", "foo").stderr
