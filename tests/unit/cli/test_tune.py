"""`fk tune` from its options to a table; times are made up."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fastkernels import layout
from fastkernels.cli import main
from fastkernels.measure.environment import environment
from fastkernels.records import TunedRow, TuneReport, Untimed
from fastkernels.report import json
from fastkernels.runner.tuning import run, table

DEVICE = f"""name: {environment("cpu").device}
implementations:
  rms_norm: [triton]
  glu: [torch]
"""


def report(chosen: float | None, other: float | None, **changes) -> TuneReport:
    """One case of rms_norm; without a time, of the torch that the table chooses and of the reference, an
    implementation is unstable."""
    rows, untimed = [], []
    for name, us in (("torch", chosen), ("reference", other)):
        facts = {"task": "L1/rms_norm", "case": "a-case", "kernel": "rms_norm", "implementation": name}
        if us is None:
            why = "30 readings: the median of about 7.75 us is known to 9 % only"
            untimed.append(Untimed(**facts, why=why))
        else:
            rows.append(
                TunedRow(
                    **facts, us=us, chosen=name == "torch", contract="host", size=8, dtype="float32",
                    noise_pct=0.1, difference=0.0, absent=("Quack's norms",),
                )
            )  # fmt: skip
    summary = table.summarize(rows, 3, {"L1/rms_norm": 2}, 1.0)
    return TuneReport(
        schema=1, environment=environment("cpu"), request={}, rows=tuple(rows), untimed=tuple(untimed),
        summary=summary, **changes,
    )  # fmt: skip


def tuned(made: TuneReport, tmp_path: Path, monkeypatch, *arguments: str) -> tuple[Result, Path]:
    """fk tune, whose measurement gave this report."""
    asked: list[tuple] = []
    monkeypatch.setattr(run, "run_tuning", lambda *given: asked.append(given) or made)
    out = tmp_path / "out.yaml"
    out.write_text(DEVICE)
    found = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["tune", "--out", str(out), *arguments])
    tuned.asked = asked  # type: ignore[attr-defined]
    return found, out


def test_fk_tune_proposes_and_writes_a_table(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "r.json"
    made = report(10.25, 5.0)
    found, out = tuned(made, tmp_path, monkeypatch, "--device", "cpu", "--json", str(path))
    assert found.exit_code == 0, found.output
    assert "within 3 % of the best: 0.0 % of 1 choices between two implementations or more" in found.stdout
    assert "a choice is the table's for a kernel in a case" in found.stdout
    assert "  2.05  L1/rms_norm a-case: rms_norm=torch, best reference" in found.stdout
    assert "baseline without Quack's norms: L1/rms_norm" in found.stdout
    assert "no time was left for 2 cases of L1/rms_norm" in found.stdout
    assert (
        "rms_norm: torch (up to 7), reference\n  beyond the bound in 0 of 1 cases, before in 1"
        in found.stdout
    )
    counted = "100.0 % of 1 choices, those without an alternative among them,"
    assert f"with these, {counted} are within the bound: meets 99%" in found.stdout
    assert table.entries(out) == {
        "rms_norm": [{"use": "torch", "max_rows": 7}, "reference"],
        "glu": ["torch"],
    }
    assert json.load_tuning(path) == made


def test_fk_tune_shows_times_and_what_is_undecided(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "r.json"
    made = report(None, 11.5)
    found, out = tuned(made, tmp_path, monkeypatch, "--device", "cpu", "--json", str(path))
    for seen in (found, CliRunner().invoke(main, ["tune", "--from", str(path), "--out", str(out)])):
        assert seen.exit_code == 3
        assert "11.5" in seen.stdout
        assert "rms_norm torch: 30 readings: the median of about 7.75 us is known to 9 %" in seen.stdout
        assert "rms_norm: undecided, keeps its entry ['triton']" in seen.stdout
        assert out.read_text() == DEVICE


def test_a_choice_without_a_time_in_one_case_is_told_by_the_exit_code(tmp_path: Path, monkeypatch) -> None:
    made = report(10.25, 5.0)
    lacking = Untimed(
        task="L1/rms_norm", case="b-case", kernel="rms_norm", implementation="torch", why="unstable"
    )
    found, out = tuned(made.model_copy(update={"untimed": (lacking,)}), tmp_path, monkeypatch)
    assert found.exit_code == 3
    assert "rms_norm: the table's choice has no time in 1 cases, and the others decide" in found.stdout
    assert "exit code 3: 1 choice has no time (a kernel in a case, not counted above)" in found.stdout
    assert table.entries(out)["rms_norm"][-1] == "reference"


def test_out_is_written_where_no_entry_changes(tmp_path: Path, monkeypatch) -> None:
    path, new, registry = tmp_path / "r.json", tmp_path / "new.yaml", tmp_path / "registry"
    json.write(report(5.0, 10.25), path)
    (registry / "devices").mkdir(parents=True)
    monkeypatch.setattr(layout, "data_dir", lambda name: tmp_path / name)
    arguments = ["tune", "--from", str(path)]
    for out in (["--out", str(new)], []):
        found = CliRunner().invoke(main, [*arguments, *out])
        assert (found.exit_code, new.exists()) == (0, False)
        assert "nothing is written: this device has no table" in found.stdout
    (registry / "devices" / "cpu.yaml").write_text(DEVICE)
    found = CliRunner().invoke(main, arguments)
    assert "every entry stays as it is in" in found.stdout
    found = CliRunner().invoke(main, [*arguments, "--out", str(new)])
    assert "every entry as it was" in found.stdout
    assert new.read_text() == DEVICE


def test_fk_tune_that_was_interrupted_shows_times_and_writes_no_table(tmp_path: Path, monkeypatch) -> None:
    cut = report(10.25, 5.0, complete=False)
    found, out = tuned(cut, tmp_path, monkeypatch, "--device", "cpu")
    assert found.exit_code == 130
    assert "10.25" in found.stdout
    assert "interrupted: no table is written" in found.stdout
    assert out.read_text() == DEVICE


def test_resume_goes_on_with_the_report_of_json(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "r.json"
    arguments = ("--device", "cpu", "--resume", "--json", str(path))
    made = report(10.25, 5.0)
    tuned(made, tmp_path, monkeypatch, *arguments)
    first = tuned.asked[0]  # type: ignore[attr-defined]
    tuned(made, tmp_path, monkeypatch, *arguments)
    second = tuned.asked[0]  # type: ignore[attr-defined]
    assert first[3] is None, "there was none"
    assert second[3] == json.load_tuning(path)
    found, _ = tuned(made, tmp_path, monkeypatch, "--device", "cpu", "--resume")
    assert found.exit_code == 2
    assert "name it with --json" in found.output


def test_a_run_whose_time_was_over_writes_no_table_unasked(monkeypatch) -> None:
    monkeypatch.setattr(run, "run_tuning", lambda *given: report(10.25, 5.0))
    found = CliRunner().invoke(main, ["tune", "--device", "cpu", "--seconds", "5"])
    assert found.exit_code == 0
    assert "cases are left, so nothing is written" in found.stdout


@pytest.mark.parametrize("text", ['{"kind": "kernels"}', "[]"])
def test_another_kind_of_report_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    found = CliRunner().invoke(main, ["tune", "--from", str(path), "--out", str(tmp_path / "t.yaml")])
    assert found.exit_code == 2
    assert "'kind' must be one of tuning" in found.output


def test_out_that_is_another_devices_table_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "r.json", tmp_path / "other.yaml"
    json.write(report(10.25, 5.0), path)
    out.write_text("name: Some Other GPU\nimplementations:\n  glu: [torch]\n")
    found = CliRunner().invoke(main, ["tune", "--from", str(path), "--out", str(out)])
    assert found.exit_code == 2
    assert "is the table of Some Other GPU, the report is of" in found.output
    assert out.read_text().count("\n") == 3
