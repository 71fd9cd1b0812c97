"""Loads, times, the picture and the verb itself."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fastkernels import registry
from fastkernels.capture.again import same_choice
from fastkernels.capture.comparison import compare
from fastkernels.capture.loads import Load
from fastkernels.capture.times import times
from fastkernels.cli import main
from fastkernels.errors import UsageError
from fastkernels.loader import golden
from fastkernels.loader.replay import twin_id
from fastkernels.measure.environment import environment
from fastkernels.records import KernelReport, KernelRow, KernelSummary
from fastkernels.report import json as report_json
from tests.golden_folders import FAVOURITE

TASK = "L1/grouped_gemm"


def test_figures_of_a_load_by_hand() -> None:
    load = Load("captured", "decode", torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25] * 4]).double(), 2)
    assert load.imbalance_L.tolist() == [2.0, 1.0]
    assert load.entropy_L.tolist() == pytest.approx([1.0, 2.0])
    assert load.hottest_L.tolist() == [0.5, 0.25]
    assert load.coldest_L.tolist() == [0.0, 0.25]


def test_favourites_stand_out_against_drawn_routing(skewed: Path) -> None:
    found = compare(str(skewed), "cpu")
    by = {(load.phase, load.skew): load for load in found.loads}
    for phase in golden.PHASES:
        uniform, captured, zipf = (by[phase, skew] for skew in ("uniform", "captured", "zipf"))
        assert uniform.imbalance_L.max() < 1.25
        assert zipf.imbalance_L.min() > 1.3
        assert captured.imbalance_L.min() > 1.8
        assert captured.entropy_L.max() < uniform.entropy_L.min()
        assert (captured.share_LE.argmax(1) == FAVOURITE).all()


def test_the_same_kernels_choose_the_same_and_another_gate_does_not(skewed: Path) -> None:
    values = golden.read(str(skewed))
    assert same_choice(values, "cpu") == (80, 80)  # 2 layers, 2 phases, 20 tokens
    turned = golden.GoldenValues(values.capture, {**values.tensors, "gate": -values.tensors["gate"]})
    same, total = same_choice(turned, "cpu")
    assert total == 80
    assert same < 40


# ---------------------------------------------------------------- times


def report(us: dict[str, float | None]) -> KernelReport:
    """A report of `fk kernels` with these durations by case."""
    rows = [
        KernelRow(
            task=TASK, variant="default", case=case, candidate="self-test", verdict="PASSED", contract="host",
            candidate_us=value,
        )
        for case, value in us.items()
    ]  # fmt: skip
    summary = KernelSummary(
        rows=len(rows),
        passed=len(rows),
        failed=0,
        unstable=0,
        geomean_speedup=None,
        wall_s=1,
        measuring_share=1,
    )
    return KernelReport(
        schema=1, environment=environment("cpu"), request={}, rows=tuple(rows), summary=summary
    )


def case_ids() -> tuple[str, str]:
    """A timed case with zipf routing, and its uniform sister."""
    zipf = next(c for c in registry.cases(TASK, "tiny") if c.routing.skew == "zipf" and c.timed)  # pyright: ignore
    return zipf.id.replace("-zipf", ""), zipf.id


def test_times_of_one_case_stand_side_by_side() -> None:
    plain, zipf = case_ids()
    (found,) = times(report({plain: 10.0, twin_id(plain): 15.0, zipf: 12.0, "unknown": 3.0}))
    assert (found.task, found.case, found.candidate) == (TASK, plain, "self-test")
    assert found.us == {"uniform": 10.0, "captured": 15.0, "zipf": 12.0}
    assert found.ratio("captured") == 1.5


@pytest.mark.parametrize("left_out", ["uniform", "captured"])
def test_a_report_without_both_is_refused(left_out: str) -> None:
    plain, zipf = case_ids()
    us = {plain: 10.0, twin_id(plain): 15.0, zipf: 12.0}
    us[plain if left_out == "uniform" else twin_id(plain)] = None  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"no case that was timed with captured.*fk kernels --golden"):
        times(report(us))


# ---------------------------------------------------------------- the verb


def fk(*arguments: str | Path):
    return CliRunner().invoke(main, [*map(str, arguments)], prog_name="fk")


def test_a_capture_on_the_command_line_shows_loads_and_is_shown_again(
    checkpoint: Path, tmp_path: Path
) -> None:
    out, picture = tmp_path / "golden", tmp_path / "deep" / "routing.png"
    asked = ("--size", "tiny", "--device", "cpu", "--requests", "2", "--plot", picture)
    done = fk("capture", "--model", checkpoint, "--out", out, *asked)
    assert done.exit_code == 0, done.stderr
    assert {file.name for file in out.iterdir()} == {"provenance.json", "golden.safetensors", "calls.jsonl"}
    assert picture.read_bytes().startswith(b"\x89PNG")
    plain, zipf = case_ids()
    path = tmp_path / "report.json"
    report_json.write(report({plain: 10.0, twin_id(plain): 15.0, zipf: 12.0}), path)
    again = fk(
        "capture", "--golden", out, "--times", path, "--json", tmp_path / "facts.json", "--plot", picture
    )
    assert again.exit_code == 0, again.stderr
    assert done.stdout.split("\n\n")[1] == again.stdout.split("\n\n")[1], "the same loads"
    assert "1.500" in again.stdout
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["times_us"][0]["us"]["zipf"] == 12.0
    assert [(load["routing"], load["phase"]) for load in facts["loads"][:2]] == [
        ("uniform", "prefill"),
        ("captured", "prefill"),
    ]
    assert facts["capture"]["weights"] == "checkpoint"


def test_random_weights_are_called_so(random_weights: Path) -> None:
    assert (
        fk("capture", "--golden", random_weights)
        .stdout.splitlines()[0]
        .endswith("RANDOM weights: routing of no real model, near uniform")
    )


def test_the_device_of_the_settings_counts(random_weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FK_DEVICE", "abacus")
    done = fk("capture", "--golden", random_weights)
    assert (done.exit_code, "FK_DEVICE: device" in done.stderr) == (2, True)


def test_a_missing_plot_library_is_named_before_anything_runs(
    skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = fk("capture", "--model", "mixtral", "--out", tmp_path / "out", "--plot", tmp_path / "x.png")
    assert done.exit_code == 3
    assert "--plot needs matplotlib. Install it: pip install -e '.[report]' in the checkout" in done.stderr
    assert not (tmp_path / "out").exists()
    assert fk("capture", "--golden", skewed).exit_code == 0, "only the plot needs it"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Say what to capture"),
        (("--model", "mixtral", "--golden", "x"), "Say what to capture"),
        (("--model", "mixtral"), "--out DIR"),
        (("--model", "mixtral", "--out", "x", "--times", "r.json"), "capture first"),
        (("--model", "nosuch", "--out", "x", "--device", "cpu"), "nosuch"),
        (
            ("--model", "llama", "--out", "x", "--device", "cpu"),
            "llama: no task of it depends on what the data choose",
        ),
        (("--golden", "x"), "is no golden folder"),
        (("--golden", "x", "--out", "y", "--seed", "3"), "--out, --seed: --golden shows what was captured"),
        (("--golden", "{skewed}", "--times", "none.json"), "none.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_said_with_exit_code_2(
    arguments: tuple[str, ...], message: str, skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = fk("capture", *(argument.format(skewed=skewed) for argument in arguments))
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert not [*tmp_path.iterdir()], "nothing is written"


def test_a_damaged_folder_is_an_error_of_both_verbs(skewed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "golden"
    shutil.copytree(skewed, copy)
    with open(copy / golden.TENSORS, "r+b") as file:
        file.seek(5000)
        file.write(b"\x00\x01\x02\x03")
    for asked in (("capture",), ("kernels", "--device", "cpu", "--self-test", "--target", "moe")):
        done = fk(*asked, "--golden", copy)
        assert done.exit_code == 2
        assert "golden.safetensors: not what was captured" in done.stderr
