"""benchmarks/vs_reference.py: what a ratio means, what a failed setting leaves, and runs of tiny models."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from fastkernels import registry

# Their library runs in Triton's interpreter, which the whole process is then given to.
IN_A_PROCESS = {"gla", "mamba", "mamba2", "retnet", "rwkv7"}


def row(workload: str, setting: str, seconds: float, items: int = 8, **more: Any) -> dict[str, Any]:
    figures = {"seconds": seconds, "items": items, "items_per_s": items / seconds}
    return {"workload": workload, "setting": setting, **figures, **more}


def report(vs_reference, ours: list[dict], theirs: list[dict], size: str = "full") -> dict[str, Any]:
    comparison = vs_reference.Comparison(
        "siglip2", "transformers", None, None, None, bars={"a": 1.5, "b": 1.5}, default_bars={"a": 3.0}
    )
    sides = {
        name: {"version": "1", "start_s": 0.0, "rows": rows, "environment": {"device_type": "cpu"}}
        for name, rows in (("fastkernels", ours), ("transformers", theirs))
    }
    return vs_reference.made(comparison, vs_reference.Machine("siglip2", size, "cpu"), sides)


def test_a_ratio_is_to_the_fastest_setting(vs_reference):
    ours = [row("a", "engine", 1.0), row("b", "engine", 2.0)]
    theirs = [
        row("a", "default", 2.0),
        row("b", "default", 8.0),
        row("a", "compiled", 1.25),
        {"workload": "b", "setting": "compiled", "failed": "RuntimeError: no"},
    ]
    found = report(vs_reference, ours, theirs)
    assert found["ratios"] == {"a": 1.25, "b": 4.0}
    assert found["by_setting"][0] == {"setting": "default", "a": 2.0, "b": 4.0}
    assert [text.partition(":")[0] for text in found["missed"]] == ["a", "a"]
    assert "fastest setting, 1.5" in found["missed"][0]
    assert "first setting, 3.0" in found["missed"][1]
    assert [line["failed"] for line in found["workloads"] if line["failed"]] == ["RuntimeError: no"]
    assert report(vs_reference, ours, theirs, size="tiny")["missed"] == []


def test_a_model_of_fewer_layers_says_so(vs_reference, capsys):
    """Both sides get them at full size alone, and the report has them."""
    (_, comparison), *_ = vs_reference.comparisons("qwen3_next").items()
    full, tiny = (comparison.machine(size, "cuda") for size in ("full", "tiny"))
    assert (full.config["num_hidden_layers"], full.config["hidden_size"]) == (20, 2048)
    assert (tiny.config["num_hidden_layers"], tiny.changes) == (4, {})
    side = {"version": "1", "start_s": 0.0, "rows": [row("prefill", "default", 1.0)]}
    sides = dict.fromkeys(("fastkernels", "transformers"), side | {"environment": {"device_type": "cpu"}})
    found = vs_reference.made(comparison, full, sides)
    assert found["changes"] == {"num_hidden_layers": 20}
    vs_reference._tell(found)
    assert "not the whole model: num_hidden_layers is 20" in capsys.readouterr().out


def test_sides_that_made_different_things_are_not_compared(vs_reference):
    with pytest.raises(AssertionError, match="7 items are not our 8"):
        report(vs_reference, [row("a", "engine", 1.0)], [row("a", "default", 1.0, items=7)])


@pytest.mark.parametrize("entry", registry.architectures(), ids=lambda entry: entry.id)
def test_the_library_that_the_facts_name_for_speed_is_one_that_is_run(vs_reference, entry):
    library = entry.reference["speed"].split()[0].partition(".")[0]
    assert library in vs_reference.comparisons(entry.id)


@dataclass
class Fake:
    """Its second setting fails."""

    settings: ClassVar = ("default", "compiled")
    version: str = "1"

    def prepare(self, workload: int, setting: str):
        if setting == "compiled":
            raise RuntimeError("graph\nbreak")
        return lambda: workload


def test_a_setting_that_fails_is_reported_and_a_side_that_fails_is_not_hidden(vs_reference, monkeypatch):
    machine = vs_reference.Machine("siglip2", "tiny", "cpu")
    *_, found = vs_reference.one_side(lambda _: Fake(), machine, {"a": 3})
    assert [one.get("failed") for one in found["rows"]] == [None, "RuntimeError: graph break"]
    assert found["rows"][0]["items"] == 3
    monkeypatch.setattr(Fake, "settings", ("compiled",))
    with pytest.raises(RuntimeError, match="break"):
        list(vs_reference.one_side(lambda _: Fake(), machine, {"a": 3}))


def test_warm_ups_are_not_counted_and_a_budget_ends_runs(vs_reference, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("comparison.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    calls: list[int] = []
    _, figures = vs_reference.timed(lambda: calls.append(1), warm_ups=2, runs=4)
    assert (len(calls), figures["all_seconds"], figures["first_s"]) == (6, [1, 1, 1, 1], 1)
    calls.clear()
    vs_reference.timed(lambda: calls.append(1), warm_ups=2, runs=4, budget_s=1.0)
    assert len(calls) == 2  # one of each


def test_every_registered_architecture_has_a_reference(vs_reference):
    assert vs_reference.architectures() == sorted(entry.id for entry in registry.architectures())
    for name in vs_reference.architectures():
        for comparison in vs_reference.comparisons(name).values():
            for size in ("tiny", "full"):
                workloads = comparison.workloads(size)
                assert comparison.bars.keys() <= workloads.keys(), name
                assert comparison.default_bars.keys() <= workloads.keys(), name


@pytest.mark.filterwarnings("ignore")  # of the libraries, which are not ours
@pytest.mark.parametrize("name", sorted({entry.id for entry in registry.architectures()} - IN_A_PROCESS))
def test_both_sides_begin(vs_reference, name: str):
    """The first workload in the first setting, of the reference that is taken where none is named."""
    reference, comparison = next(iter(vs_reference.comparisons(name).items()))
    machine = vs_reference.Machine(name, "tiny", "cpu")
    workload, shape = next(iter(comparison.workloads("tiny").items()))

    def side(make: Any) -> dict[str, Any]:
        *_, found = vs_reference.one_side(make, machine, {workload: shape}, make.settings[0])
        return found

    sides = {vs_reference.OURS: side(comparison.ours)}
    try:
        sides[reference] = side(comparison.theirs)
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        if find_spec(library) is not None:  # it is there, and has not what we import
            raise
        pytest.skip(f"{library} is not installed")
    found = vs_reference.made(comparison, machine, sides)
    assert found["ratios"].keys() == {workload}, found["workloads"]


def test_vs_vllm_counts_tokens_of_its_runs(vs_vllm, monkeypatch):
    monkeypatch.setattr(vs_vllm, "WORKLOADS", {"single-request": (2, 3, 5)})

    def generate(prompts: list[list[int]], length: int) -> list[Any]:
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=prompt[:length])]) for prompt in prompts]

    long = vs_vllm._run(generate, lambda count, length: [[0] * 9] * count, "single-request")
    assert long["output_tokens_per_s"] == pytest.approx(10 / long["seconds"])
    with pytest.raises(AssertionError, match="6 tokens, not 10"):
        vs_vllm._run(generate, lambda count, length: [[0] * length] * count, "single-request")


def test_vs_vllm_reports_what_a_run_that_was_cut_off_left(vs_vllm, tmp_path, monkeypatch) -> None:
    out = tmp_path / "a.json"
    monkeypatch.setattr(vs_vllm, "_environment", dict)
    monkeypatch.setattr(sys, "argv", ["vs_vllm.py", "--cut-off", "--out", str(out)])
    with pytest.raises(SystemExit, match=r"a\.vllm\.json"):
        vs_vllm.main()
    for side, seconds in (
        ("fastkernels", {"balanced": [2.0, 1.9, 2.1], "fixed-batch-32": [2.0, 2.5], "decode-heavy": [4.0]}),
        ("vllm", {"balanced": [3.0, 2.9, 3.1], "fixed-batch-32": [9.0, 2.2]}),
    ):
        workloads = {name: {"all_seconds": runs} for name, runs in seconds.items()}
        left = {"start_s": 1.0, "workloads": workloads, "version": "1"}
        out.with_suffix(f".{side}.json").write_text(json.dumps(left))
    vs_vllm.main()
    report = json.loads(out.read_text())
    assert report["ratios"] == {"balanced": 1.5, "fixed-batch-32": 1.1}
    assert report["by"] == {"balanced": "median", "fixed-batch-32": "fastest"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_vs_reference_reports_what_a_run_that_was_cut_off_left(vs_reference, tmp_path, monkeypatch) -> None:
    out = tmp_path / "a.json"
    command = [
        "vs_reference.py",
        "siglip2",
        "--size",
        "tiny",
        "--device",
        "cpu",
        "--out",
        str(out),
        "--cut-off",
    ]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match=r"a\.fastkernels\.json, .*a\.transformers\.json"):
        vs_reference.main()
    ours = [row("batch-8", "engine", 1.0), row("high-res", "engine", 1.0)]
    for side, rows in (("fastkernels", ours), ("transformers", [row("batch-8", "default", 1.5)])):
        left = {"start_s": 1.0, "rows": rows, "version": "1", "environment": {"device_type": "cpu"}}
        out.with_suffix(f".{side}.json").write_text(json.dumps(left))
    vs_reference.main()
    found = json.loads(out.read_text())
    assert (found["ratios"], found["cut_off"]) == ({"batch-8": 1.5}, True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.fixture
def ours_here(program, vs_reference, side_here, monkeypatch) -> None:
    """Our side needs no process of its own."""
    comparison = program("comparison")
    theirs = comparison.in_a_process

    def find(file: str, arguments: list[str], *rest: Any) -> dict[str, Any]:
        return (side_here if vs_reference.OURS in arguments else theirs)(file, arguments, *rest)

    monkeypatch.setattr(comparison, "in_a_process", find)


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.usefixtures("ours_here")
@pytest.mark.parametrize(
    ("name", "workload", "reference", "items"),
    [("siglip2", "batch-8", "transformers", 8), ("gla", "single-request", "flash-linear-attention", 16)],
)
def test_a_run_on_the_cpu(
    vs_reference, called, capsys, tmp_path, name: str, workload: str, reference: str, items: int
):
    """The reference's side is a process: one of them runs in Triton's interpreter."""
    if name == "gla" and find_spec("fla") is None:
        pytest.skip("fla is not installed")
    out = tmp_path / "report.json"
    flags = ["--size", "tiny", "--device", "cpu", "--workloads", workload, "--settings", "default"]
    called(vs_reference, name, *flags, "--out", str(out))
    assert "not a GPU result" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["kind"] == "vs_reference"
    assert found["ratios"].keys() == {workload}
    made = {line["side"]: line["items"] for line in found["workloads"]}
    assert made == {"fastkernels": items, reference: items}
    assert found["environment"]["device_type"] == "cpu"
