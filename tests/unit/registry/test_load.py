"""A corrupt registry file is named with its line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.errors import FileFormatError
from fastkernels.registry.load import read_yaml
from fastkernels.registry.workloads import Workload

SAMPLING = "tasks/L1/sampling.yaml"


def line_of(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), start=1) if needle in line)


@pytest.mark.parametrize(
    ("file", "old", "new", "at", "problem"),
    [
        (
            "tasks/L1/rms_norm.yaml",
            "variants: {default: RMSNorm, weightless: WeightlessRMSNorm, gemma: GemmaRMSNorm}",
            "variants: {default: RMSNorm, weightless: WeightlessRMSNorm, gemma: GemmaRMSNorm",
            "mirrors: [vllm.model",
            "expected",
        ),
        (SAMPLING, "rule: sampler", "rule: samples", "rule: samples", "samples"),
        ("tasks/L1/glu.yaml", "id: L1/glu", "id: L5/glu", "id: L5/glu", "L5/glu"),
        (SAMPLING, "rule: sampler", "rules: sampler", "rules: sampler", "not permitted"),
        (SAMPLING, "rule: sampler", "rule: sampler\nrule: values", "rule: values", "twice"),
        (
            "workloads.yaml",
            "requests: 1000, input_len: 1024",
            "requests: no, input_len: 1024",
            "requests: no",
            "requests",
        ),
        ("architectures/llama.yaml", "    dtype: float32", "    dtype: float3", "dtype: float3", "float3"),
    ],
)
def test_yaml(copied: Path, file: str, old: str, new: str, at: str, problem: str) -> None:
    path = copied / file
    text = path.read_text().replace(old, new, 1)
    assert new in text
    path.write_text(text)
    with pytest.raises(FileFormatError) as caught:
        registry.tasks(), registry.workloads(), registry.architectures()
    assert caught.value.path == path
    assert caught.value.where == f"line {line_of(text, at)}"
    assert problem in caught.value.problem
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("number", "damage", "problem"),
    [
        (7, lambda line: line[:-5], "column"),
        (7, lambda line: "[]", "Input should be"),
        (7, lambda line: '{"tokens":8192}', "it needs 'T'"),
        (7, lambda line: '{"T":8192,"tokens":8192}', "tokens"),
        (7, lambda line: '{"batch":[3]}', "no line of a file of cases"),
        (7, lambda line: '{"T":8192,"x":["rows",28672]}', "got 'rows'"),
        (7, lambda line: '{"T":8192,"variant":"gleu"}', "id"),
        (7, lambda line: line.replace('"T":', '"size":"small","T":'), "small"),
        (7, lambda line: line.replace('"T":', '"task":"L1/gul","T":'), "L1/gul"),
    ],
)
def test_cases(copied: Path, number: int, damage, problem: str) -> None:
    path = copied / "cases" / "L1" / "glu.jsonl"
    lines = path.read_text().splitlines()
    lines[number - 1] = damage(lines[number - 1])
    path.write_text("\n".join(lines))
    with pytest.raises(FileFormatError) as caught:
        registry.cases("L1/glu")
    assert caught.value.path == path
    assert caught.value.where == f"line {number}"
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("changed", "problem"),
    [({"size": "small"}, "small"), ({"dtype": None}, "dtype"), (None, "size: Field required")],
)
def test_a_wrong_heading_is_told_of_the_first_case_below_it(copied: Path, changed, problem: str) -> None:
    path = copied / "cases" / "L1" / "glu.jsonl"
    lines = path.read_text().splitlines()
    place = next(place for place, line in enumerate(lines) if '"architecture"' in line)
    heading = [] if changed is None else [json.dumps({**json.loads(lines[place]), **changed})]
    case = lines[place + 2]
    assert '"form"' not in case
    path.write_text("\n".join([*lines[:place], *heading, case]))
    with pytest.raises(FileFormatError) as caught:
        registry.cases("L1/glu")
    assert caught.value.where == f"line {place + len(heading) + 1}"
    assert problem in caught.value.problem


def test_a_case_id_given_twice(copied: Path) -> None:
    path = copied / "cases" / "L1" / "glu.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1]]))
    with pytest.raises(FileFormatError, match=rf"line {len(lines) + 1}: id .* is taken"):
        registry.cases("L1/glu")


def test_an_alias_given_twice(copied: Path) -> None:
    path = copied / "tasks" / "L2" / "gated_mlp.yaml"
    path.write_text(path.read_text().replace("aliases: [llama_mlp", "aliases: [silu_and_mul, llama_mlp"))
    with pytest.raises(FileFormatError, match="'silu_and_mul' is taken"):
        registry.tasks()


def test_a_task_in_the_file_of_another(copied: Path) -> None:
    folder = copied / "tasks" / "L1"
    (folder / "glu.yaml").rename(folder / "gated.yaml")
    with pytest.raises(FileFormatError, match="id is L1/glu, not L1/gated"):
        registry.tasks()


def test_an_architecture_whose_task_has_no_entry(copied: Path) -> None:
    (copied / "tasks" / "L4" / "llada.yaml").unlink()
    with pytest.raises(FileFormatError, match=r"llada.yaml: there is no registry/tasks/L4/llada.yaml"):
        registry.architectures()


def test_a_registry_of_another_version(copied: Path) -> None:
    shutil.rmtree(copied / "tasks")
    with pytest.raises(FileFormatError, match="written for another version"):
        registry.tasks()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="No such file"):
        read_yaml(tmp_path / "none.yaml", list[Workload])
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: x\nkind: \xff\n")
    with pytest.raises(FileFormatError, match="line 2: not UTF-8"):
        read_yaml(binary, list[Workload])
    empty = tmp_path / "empty.yaml"
    empty.touch()
    with pytest.raises(FileFormatError, match="line 1"):
        read_yaml(empty, list[Workload])


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{\n'a': 1}", "line 2"),
        (None, ""),
        ("[1]", "line 1"),
        ('{"architectures": 3}', ""),
        ('{"architectures": "Llama"}', ""),
    ],
)
def test_config_json(tmp_path: Path, text: str | None, where: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(FileFormatError) as caught:
        registry.read_config(tmp_path)
    assert caught.value.where == where
