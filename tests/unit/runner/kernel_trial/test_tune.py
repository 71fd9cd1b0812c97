"""From rows to a device's table."""

import math
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from fastkernels import registry
from fastkernels.cli import main
from fastkernels.errors import FileFormatError, UsageError
from fastkernels.judge.summary import summarize
from fastkernels.measure.environment import environment
from fastkernels.records import Case, Failure, KernelReport, KernelRow
from fastkernels.registry.schema import Choice
from fastkernels.runner.kernel_trial import run as runner_kernels
from fastkernels.runner.kernel_trial import tune

CASES = [case for case in registry.cases("rms_norm", "tiny") if case.timed]


def rows_of(case: Case) -> int:
    """Rows to normalize, whatever the dimensions before the last are."""
    return math.prod(case.inputs["x"].shape[:-1])


BY_SIZE = {rows_of(case): case for case in CASES if "residual" not in case.inputs}


def row(size: int, name: str, us: float | None, **changes) -> KernelRow:
    case = BY_SIZE[size]
    facts = {
        "task": case.task, "variant": "default", "case": case.id, "candidate": f"impl:{name}",
        "verdict": "PASSED" if us else "UNSUPPORTED", "contract": "host", "candidate_us": us,
        "baseline_impl": "rms_norm=torch", "calls": 3,
    }  # fmt: skip
    return KernelRow(**{**facts, **changes})


def report(*rows: KernelRow) -> KernelReport:
    return KernelReport(
        schema=1, environment=environment("cpu"), request={}, rows=rows, summary=summarize(rows, 1.0, 1.0)
    )


def two_sizes() -> tuple[int, int]:
    return min(BY_SIZE), max(BY_SIZE)


def test_sizes_are_what_the_policy_is_asked_for() -> None:
    for case in CASES:
        kernel = "add_rms_norm" if "residual" in case.inputs else "rms_norm"
        assert tune.sizes(case) == {kernel: rows_of(case)}


def test_the_fastest_of_each_size_with_one_entry_for_neighbours() -> None:
    small, large = two_sizes()
    found = tune.tune(
        report(
            row(small, "torch", 10.0), row(small, "reference", 5.0),
            row(large, "torch", 10.0), row(large, "reference", 20.0),
        )
    )  # fmt: skip
    assert found == {"rms_norm": [Choice(use="reference", max_rows=small), Choice(use="torch")]}
    found = tune.tune(
        report(
            row(small, "torch", 10.0), row(small, "reference", 5.0),
            row(large, "torch", 10.0), row(large, "reference", 6.0),
        )
    )  # fmt: skip
    assert found == {"rms_norm": [Choice(use="reference")]}


def test_what_is_as_good_as_the_best_stays() -> None:
    small, large = two_sizes()
    found = tune.tune(report(row(small, "torch", 10.1), row(small, "reference", 10.0)))
    assert found == {"rms_norm": [Choice(use="torch")]}
    found = tune.tune(
        report(
            row(small, "torch", 11.0), row(small, "reference", 10.0),
            row(large, "torch", 10.0), row(large, "reference", 10.1),
        )
    )  # fmt: skip
    assert found == {"rms_norm": [Choice(use="reference")]}, "once changed, it is not changed back for noise"


def test_what_cannot_serve_or_is_wrong_is_not_chosen() -> None:
    small, _ = two_sizes()
    found = tune.tune(
        report(
            row(small, "torch", 10.0),
            row(small, "triton", None),
            row(small, "reference", 1.0, verdict="WRONG(value)"),
        )
    )
    assert found == {"rms_norm": [Choice(use="torch")]}


@pytest.mark.parametrize(
    "other",
    [{"contract": "eager", "candidate_us": 5.0}, {"verdict": "UNSTABLE", "candidate_us": None}],
    ids=["contract", "unstable"],
)
def test_a_case_decides_if_all_were_timed_under_one_contract(other, tmp_path) -> None:
    small, large = two_sizes()
    incomparable = row(small, "torch", 10.0), row(small, "reference", 5.0, **other)
    assert tune.tune(report(*incomparable)) == {"rms_norm": []}
    decided = row(large, "torch", 10.0), row(large, "reference", 5.0)
    assert tune.tune(report(*incomparable, *decided)) == {"rms_norm": [Choice(use="reference")]}
    path = tmp_path / "device.yaml"
    path.write_text(DEVICE)
    tune.write({"rms_norm": [], "softmax": [Choice(use="torch")]}, path, report(*decided), path)
    before = yaml.safe_load(DEVICE)["implementations"]
    assert tune.entries(path) == {**before, "softmax": ["torch"]}, "what is undecided keeps its entry"


def test_a_report_without_implementations_is_refused() -> None:
    with pytest.raises(UsageError, match="--providers"):
        tune.tune(report(row(two_sizes()[0], "torch", 1.0, candidate="mine")))


DEVICE = """# Ceilings of it.
name: A device
ceilings: {copy_tb_s: 4.0, gemm_tflops: {bfloat16: 1.0}}
# implementations: measured by fk tune on 2025-01-01, torch 1
implementations:
  rms_norm: [triton]
  glu:
  - {use: torch, max_rows: 4}
  - triton
sources:
  machine: one
"""


def test_an_entry_is_replaced_and_everything_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(DEVICE)
    for use in ("reference", "torch"):  # again: it replaces its own
        table = {"rms_norm": [Choice(use=use, max_rows=32), Choice(use="torch")]}
        tune.write(table, path, report(row(two_sizes()[0], "torch", 1.0)), path)
        wanted = f"  rms_norm: [{{use: {use}, max_rows: 32}}, torch]  # fk tune on "
        lines = path.read_text().splitlines()
        (place,) = [i for i, line in enumerate(lines) if line.startswith(wanted)]
        lines[place] = "  rms_norm: [triton]"
        assert lines == DEVICE.splitlines()


def test_an_entry_on_several_lines_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(DEVICE)
    made = report(row(two_sizes()[0], "torch", 1.0))
    tune.write({"glu": [Choice(use="torch")], "softmax": [Choice(use="torch")]}, path, made, path)
    found = yaml.safe_load(path.read_text())
    assert found.pop("implementations") == {"rms_norm": ["triton"], "glu": ["torch"], "softmax": ["torch"]}
    before = yaml.safe_load(DEVICE)
    before.pop("implementations")
    assert found == before


@pytest.mark.parametrize(
    "text", ["name: A device\n", "name: A device\nimplementations:  # none\n\nl2_mib: 6\n", ""]
)
def test_a_file_without_entries_gets_them(text: str, tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(text)
    tune.write({"glu": [Choice(use="torch")]}, path, report(row(two_sizes()[0], "torch", 1.0)), path)
    assert tune.entries(path) == {"glu": ["torch"]}


def test_a_new_file_begins_as_a_copy_of_the_devices(tmp_path: Path) -> None:
    device, out = tmp_path / "device.yaml", tmp_path / "new" / "out.yaml"
    device.write_text(DEVICE)
    made = report(row(two_sizes()[0], "torch", 1.0))
    tune.write({"softmax": [Choice(use="torch")]}, out, made, device)
    assert tune.entries(out) == {**tune.entries(device), "softmax": ["torch"]}
    assert device.read_text() == DEVICE
    tune.write({"softmax": [Choice(use="torch")]}, tmp_path / "first.yaml", made, tmp_path / "none.yaml")
    assert yaml.safe_load((tmp_path / "first.yaml").read_text())["name"] == made.environment.device


@pytest.mark.parametrize("kernel", ["rms_norm", "softmax"])
def test_a_file_whose_entries_cannot_be_told_apart_is_left_alone(kernel: str, tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text("name: A device\nimplementations: {rms_norm: [triton]}\n")
    made = report(row(two_sizes()[0], "torch", 1.0))
    with pytest.raises(FileFormatError, match="on a line of its own"):
        tune.write({kernel: [Choice(use="torch")]}, path, made, path)
    assert path.read_text() == "name: A device\nimplementations: {rms_norm: [triton]}\n"


def test_a_table_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = report(row(two_sizes()[0], "torch", 1.0))
    out = tmp_path / "file" / "table.yaml"
    with pytest.raises(UsageError, match=r"--out .*table\.yaml: .*Name another file"):
        tune.write({"glu": [Choice(use="torch")]}, out, made, tmp_path / "none.yaml")


def test_the_committed_tables_lose_nothing(tmp_path: Path) -> None:
    """What the policy reads is what fk tune writes."""
    for file in (Path(registry.__file__).parents[3] / "registry" / "devices").glob("*.yaml"):
        copy = tmp_path / file.name
        made = report(row(two_sizes()[0], "torch", 1.0))
        tune.write({"glu": [Choice(use="torch")], "rope": []}, copy, made, file)
        before, after = (yaml.safe_load(each.read_text()) for each in (file, copy))
        before["implementations"]["glu"] = ["torch"]
        assert after == before


def tuned(made: KernelReport, tmp_path: Path, monkeypatch, *arguments: str) -> tuple[Result, Path]:
    """fk tune, whose measurement gave this report."""
    monkeypatch.setattr(runner_kernels, "run_kernels", lambda request, progress: made)
    out = tmp_path / "out.yaml"
    out.write_text(DEVICE)
    environment = {"FK_TRACKING": "false", "COLUMNS": "200"}
    found = CliRunner(env=environment).invoke(main, ["tune", "--out", str(out), *arguments])
    return found, out


def test_fk_tune_shows_times_and_what_is_undecided(tmp_path: Path, monkeypatch) -> None:
    small, large = two_sizes()
    said = "9 samples: the interval is still 9 % wide (about 7.75 us, the baseline 8.5). Try more"
    unstable = {"verdict": "UNSTABLE", "failure": Failure(message=said)}
    made = report(
        row(small, "torch", 10.25), row(small, "reference", None, **unstable),
        row(large, "torch", 11.5), row(large, "reference", None, **unstable),
    )  # fmt: skip
    found, out = tuned(made, tmp_path, monkeypatch, "--device", "cpu", "--json", str(tmp_path / "r.json"))
    assert found.exit_code == 3
    assert "10.25" in found.stdout
    assert "11.5" in found.stdout
    for size in (small, large):
        assert f"impl:reference {BY_SIZE[size].id}: {said.partition('. ')[0]}\n" in found.stdout
    assert "rms_norm: undecided, keeps its entry ['triton']" in found.stdout
    assert out.read_text() == DEVICE
    again = CliRunner().invoke(main, ["tune", "--from", str(tmp_path / "r.json"), "--out", str(out)])
    assert again.exit_code == 3
    assert "10.25" in again.stdout
    assert out.read_text() == DEVICE


def test_fk_tune_that_was_interrupted_shows_times_and_writes_no_table(tmp_path: Path, monkeypatch) -> None:
    small, _ = two_sizes()
    decided = report(row(small, "torch", 10.25), row(small, "reference", 5.0))
    found, out = tuned(decided, tmp_path, monkeypatch, "--device", "cpu")
    assert found.exit_code == 0, found.output
    assert tune.entries(out)["rms_norm"] == ["reference"]
    cut = decided.model_copy(update={"complete": False})
    found, out = tuned(cut, tmp_path, monkeypatch, "--device", "cpu")
    assert found.exit_code == 130
    assert "10.25" in found.stdout
    assert "interrupted: no table is written" in found.stdout
    assert out.read_text() == DEVICE
