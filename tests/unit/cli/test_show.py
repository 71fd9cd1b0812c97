from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from fastkernels import registry
from fastkernels.cli import main


def fk(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["show", *arguments])


def facts(*arguments: str) -> dict:
    result = fk(*arguments, "--json", "-")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def with_all_below(name: str) -> set[str]:
    """Ids of a task and of what it builds on, level by level."""
    found = facts(name)
    return {found["task"]}.union(*map(with_all_below, found["builds_on"]))


def test_a_task() -> None:
    found = facts("rms_norm")
    assert found["task"] == "L1/rms_norm"
    assert found["contract"].startswith("Root-mean-square normalisation")
    assert found["variants"]["default"]["signature"][0] == "RMSNorm(hidden_size: int, eps: float=1e-06)"
    assert {"L2/causal_attention", "L3/decoder_layer", "L4/llama"} <= set(found["used_by"])
    assert {"gla", "llama"} <= set(found["architectures"])
    assert len(found["cases"]) == len(registry.cases("L1/rms_norm"))
    residual = next(case for case in found["cases"] if case["case"] == "llama-8b-T8192-D4096-residual-bf16")
    assert residual["calls"] == 64
    assert residual["inputs"]["x"] == "bfloat16[8192, 4096]"
    assert {(i["kernel"], i["name"]) for i in found["implementations"]} >= {
        ("rms_norm", "reference"),
        ("rms_norm", "triton"),
        ("add_rms_norm", "inductor"),
    }


def test_a_view_is_shown_with_its_strides() -> None:
    found = {case["case"]: case["inputs"] for case in facts("rope")["cases"]}
    assert found["llama-8b-T512-K128-bf16"]["query"] == "bfloat16[512, 4096] strides [6144, 1]"
    assert found["full-yarn-T257-K128-bf16"]["query"] == "bfloat16[257, 4096]", "of no model: packed"


def test_a_task_above_level_1_shows_the_implementations_below_it() -> None:
    found = facts("gated_mlp")
    assert found["builds_on"] == ["L1/glu", "L2/parallel_linear"]
    shown = {i["kernel"] for i in found["implementations"]}
    assert {"glu", "linear", "linear_glu"} <= shown
    assert shown == {kernel for task in with_all_below("gated_mlp") for kernel in registry.task(task).kernels}


def test_a_variant_and_what_a_task_writes() -> None:
    assert list(facts("gelu_and_mul")["variants"]) == ["gelu"]
    assert facts("kv_cache")["mutates"] == ["key_cache", "value_cache"]


def test_an_architecture() -> None:
    found = facts("llama")
    assert found["configs"]["8b"]["config"]["hidden_size"] == 4096
    assert found["cases"]["L4/llama"]["full"] > 0
    text = fk("llama").stdout
    assert "meta-llama/Llama-3.1-8B-Instruct" in text
    assert "prefill-heavy" in text


def test_tasks_without_a_case_of_an_architecture_are_no_rows() -> None:
    found, text = facts("oasis")["cases"], fk("oasis").stdout
    rows, others = text.split("Tasks, with their numbers of cases")[1].split("Tasks that these import")
    assert found["L1/video_rope"] == {"tiny": 0, "full": 0}
    assert {line.split()[0] for line in rows.splitlines() if line.startswith("L")} == {
        task for task, sizes in found.items() if any(sizes.values())
    }
    assert "L1/all_reduce, L1/axial_rope, " in others
    assert max(map(len, others.splitlines())) <= 100


@pytest.mark.parametrize(
    ("name", "compared", "each"),
    [
        ("flux", "program, image: channel_cosine", "1024x1024, 512 prompt tokens, 28 steps, 4 a batch"),
        ("whisper", "tokens", "10 seconds, 444 out"),
    ],
)
def test_what_a_request_is_and_how_answers_are_compared(name: str, compared: str, each: str) -> None:
    text = fk(name).stdout
    assert f"correctness  {compared}\n" in text
    assert each in text


@pytest.mark.parametrize("name", [entry.id for entry in registry.tasks()])
def test_every_task_prints(name: str) -> None:
    result = fk(name)
    assert result.exit_code == 0
    for heading in ("Variants", "Implementations", "Cases"):
        assert heading in result.stdout


@pytest.mark.parametrize(
    ("name", "near"), [("lama", "llama"), ("rms-norm", "L1/rms_norm"), ("glu:gleu", "L1/glu:gelu")]
)
def test_bad_names(name: str, near: str) -> None:
    result = fk(name)
    assert result.exit_code == 2
    assert near in result.stderr


def test_cases_are_narrowed_by_all_options() -> None:
    every = facts("linear")["cases"]
    narrowed = ("--architecture", "llama", "--size", "full", "--phase", "decode", "--timed")
    mine = facts("linear", *narrowed)["cases"]
    assert mine
    assert mine == [
        case
        for case in every
        if case["case"].startswith("llama-")
        and (case["size"], case["phase"], case["timed"]) == ("full", "decode", True)
    ]
    assert [case["case"] for case in facts("linear", "--case", mine[0]["case"])["cases"]] == [mine[0]["case"]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("linear", "--architecture", "lama"), "Did you mean llama"),
        (("linear", "--case", "llama-9b"), "No case 'llama-9b'"),
        (("linear", "--phase", "decod"), "Did you mean decode"),
        (
            ("rms_norm", "--architecture", "whisper"),
            "none of which fits all options. See them: fk show L1/rms_norm",
        ),
        (("llama", "--timed"), "--timed: llama is an architecture"),
    ],
)
def test_what_narrows_to_nothing(arguments: tuple[str, ...], told: str) -> None:
    result = fk(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr
