"""report/mlflow.py: runs are stored, and whatever fails is a warning within bounded time."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastkernels import report as package
from fastkernels.errors import UsageError
from fastkernels.report import mlflow, mlflow_child, table


@pytest.fixture
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("FK_TRACKING", raising=False)
    return tmp_path / "state"


def query(state: Path, sql: str) -> list[tuple]:
    connection = sqlite3.connect(state / "mlflow.db")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@pytest.mark.slow
def test_runs_of_both_kinds_are_stored(state, tmp_path, kernel_report, eval_report, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "faster" / "L1" / "rms_norm.py"
    source.parent.mkdir(parents=True)
    source.write_text("class RMSNorm: ...\n")
    run = mlflow.log(kernel_report, [source])
    assert mlflow.log(eval_report, [])
    assert capfd.readouterr() == ("", ""), "MLflow's own chatter must not be seen"
    assert (run,) in query(state, "select run_uuid from runs")
    names = {name for (name,) in query(state, "select name from experiments")}
    assert {"fastkernels-kernels", "fastkernels-eval"} <= names
    metrics = dict(query(state, "select key, value from metrics"))
    assert metrics["L1/rms_norm:default/tiny-T7-D64-f32/mine/speedup"] == 1.251
    assert metrics["L1/rms_norm:default/tiny-T64-D64-f32/mine/passed"] == 0
    assert metrics["macroeval/score"] == eval_report.macroeval.score
    tags = dict(query(state, "select key, value from tags"))
    assert tags["environment.device"] == kernel_report.environment.device
    assert dict(query(state, "select key, value from params"))["seed"] == "3"
    assert {status for (status,) in query(state, "select status from runs")} == {"FINISHED"}
    [stored] = (state / "mlartifacts").rglob("rms_norm.py")
    assert stored.read_text() == source.read_text()
    assert stored.parts[-4:] == ("candidates", "faster", "L1", "rms_norm.py")
    saved = [json.loads(path.read_text())["kind"] for path in (state / "mlartifacts").rglob("report.json")]
    assert sorted(saved) == ["eval", "kernels"]
    assert not (tmp_path / "mlruns").exists(), "nothing in the working folder"


@pytest.mark.slow
def test_a_model_that_is_a_folder_is_stored(state, eval_report, capfd):
    [first, *others] = eval_report.models
    models = [
        first.model_copy(update={"model": folder, "config": folder}) for folder in ("/data/it", "../of/./it")
    ]
    assert mlflow.log(eval_report.model_copy(update={"models": (*models, *others)}), [])
    assert capfd.readouterr() == ("", "")
    metrics = dict(query(state, "select key, value from metrics"))
    assert metrics["data/it/data/it/valid"] == metrics["of/it/of/it/valid"] == float(first.valid)


def test_a_failing_child_is_one_line_of_warning(state, kernel_report, capsys, monkeypatch):
    def broken(*args: object, **kwargs: object) -> subprocess.CompletedProcess:
        return subprocess.CompletedProcess(
            [], 1, "", "Traceback ...\nOperationalError: unable to open database file\n"
        )

    monkeypatch.setattr(mlflow.subprocess, "run", broken)
    assert mlflow.log(kernel_report, []) is None
    [line] = capsys.readouterr().err.splitlines()
    what = "OperationalError: unable to open database file"
    assert line.startswith(f"warning: not logged to MLflow: {what} (sqlite:///{state}/mlflow.db). ")
    assert "FK_TRACKING=0" in line
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@tracking:5000")
    assert mlflow.log(kernel_report, []) is None
    assert "secret" not in capsys.readouterr().err


def test_an_error_of_a_database_is_told_by_what_it_says():
    said = "(sqlite3.OperationalError) duplicate column name: step\n[SQL: ALTER]\n(Background: https://x)"
    assert mlflow_child.told(ValueError(said)) == f"ValueError: {said.splitlines()[0]}"
    assert mlflow_child.told(KeyError()) == "KeyError: no reason given"


def test_one_run_at_a_time_makes_a_database(tmp_path):
    """A file lock is of an open file, so it holds between threads as between processes."""
    uri, seen = f"sqlite:///{tmp_path}/mlflow.db", []

    def second() -> None:
        with mlflow_child.alone(uri):
            seen.append("second")

    thread = threading.Thread(target=second)
    with mlflow_child.alone(uri):
        thread.start()
        thread.join(0.3)
        seen.append("first")
    thread.join(10)
    assert seen == ["first", "second"]
    for elsewhere in ("http://tracking:5000", f"sqlite:///{tmp_path}/none/mlflow.db"):
        with mlflow_child.alone(elsewhere):
            pass


@pytest.mark.slow
@pytest.mark.whole
def test_two_first_runs_at_once_are_both_stored(state, kernel_report, capfd):
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: mlflow.log(kernel_report, []), range(2)))
    assert len({run for run in done if run}) == 2, capfd.readouterr().err
    assert query(state, "select count(*) from runs") == [(2,)]


def test_an_unusable_place_is_a_warning(tmp_path, kernel_report, capsys, monkeypatch):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("FK_STATE_DIR", str(in_the_way))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert mlflow.log(kernel_report, []) is None
    assert "warning: not logged to MLflow" in capsys.readouterr().err


def test_a_hanging_server_costs_bounded_time(state, kernel_report, capsys, monkeypatch):
    monkeypatch.setattr(mlflow, "TIMEOUT_S", 0.2)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    begin = time.monotonic()
    assert mlflow.log(kernel_report, []) is None
    assert time.monotonic() - begin < 5
    assert "no answer within 0.2 s from http://127.0.0.1:9" in capsys.readouterr().err


def test_it_can_be_switched_off(state, kernel_report, monkeypatch):
    monkeypatch.setenv("FK_TRACKING", "0")
    assert mlflow.log(kernel_report, []) is None
    assert not state.exists()


def test_a_chosen_server_decides_about_artifacts(state, kernel_report, monkeypatch):
    assert mlflow.payload(kernel_report, [])["artifacts"] == str(state / "mlartifacts")
    assert mlflow.payload(kernel_report, [])["uri"] == f"sqlite:///{state}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    entry = mlflow.payload(kernel_report, [])
    assert (entry["uri"], entry["artifacts"]) == ("http://tracking:5000", None)


def test_a_run_ends_with_its_page_its_entry_and_the_next_command(state, eval_report, capsys, monkeypatch):
    monkeypatch.setattr(mlflow, "log", lambda report, sources: "0a1b2c")
    package.publish(eval_report)
    page, run, following = capsys.readouterr().out.splitlines()[-3:]
    assert page.startswith(f"page  {state}/reports/")
    assert "-eval-mine.html" in page
    path = Path(page.split()[1])
    assert "MacroEval" in path.read_text()
    assert json.loads(path.with_suffix(".json").read_text())["kind"] == "eval"
    assert run == f"run   0a1b2c  in sqlite:///{state}/mlflow.db"
    assert following.startswith("next  fk ")

    monkeypatch.setattr(mlflow, "log", lambda report, sources: None)
    (state / "in the way").write_text("")
    monkeypatch.setenv("FK_STATE_DIR", str(state / "in the way"))
    assert package.publish(eval_report) == 1, "as without a page"
    told = capsys.readouterr()
    assert told.err.startswith("warning: not kept: ")
    assert "FK_STATE_DIR" in told.err
    assert "page  " not in told.out


def test_publish_shows_writes_and_logs(kernel_report, tmp_path, capsys, monkeypatch):
    logged = []
    monkeypatch.setenv("FK_TRACKING", "0")
    monkeypatch.setattr(mlflow, "log", lambda report, sources: logged.append(sources))
    assert package.publish(kernel_report, str(tmp_path / "out.json"), [Path("x.py")]) == 1
    assert "fk kernels on" in capsys.readouterr().out
    assert (tmp_path / "out.json").is_file()
    assert logged == [[Path("x.py")]]
    package.publish(kernel_report, "-")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["kind"] == "kernels"
    assert "fk kernels on" in captured.err


def test_a_reader_that_has_gone_costs_no_report(kernel_report, tmp_path, monkeypatch):
    def gone(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(table, "show", gone)
    logged = []
    monkeypatch.setenv("FK_TRACKING", "0")
    monkeypatch.setattr(mlflow, "log", lambda *arguments: logged.append(arguments))
    with pytest.raises(BrokenPipeError):
        package.publish(kernel_report, str(tmp_path / "out.json"))
    assert (tmp_path / "out.json").is_file()
    assert logged


def test_a_file_that_cannot_be_written_costs_nothing_else(kernel_report, tmp_path, capsys, monkeypatch):
    def full() -> None:
        raise UsageError("--junit x: No space left on device")

    logged, written = [], []
    monkeypatch.setattr(mlflow, "log", lambda *arguments: logged.append(arguments))
    with pytest.raises(UsageError, match="No space left"):
        package.publish(
            kernel_report,
            str(tmp_path / "out.json"),
            further=[("x", full), ("y", lambda: written.append("markdown"))],
        )
    assert "fk kernels on" in capsys.readouterr().out
    assert (tmp_path / "out.json").is_file()
    assert (len(written), len(logged)) == (1, 1)


def test_exit_codes(kernel_report, eval_report):
    def kernels(**changes: int) -> int:
        summary = kernel_report.summary.model_copy(update={"failed": 0, **changes})
        return package.exit_code(kernel_report.model_copy(update={"summary": summary}))

    assert kernels() == 0
    assert kernels(failed=1, unstable=1) == 1
    assert kernels(unstable=1) == 3
    assert kernels(passed=0) == 3, "nothing could be judged"
    assert package.exit_code(eval_report) == 1
    good = eval_report.model_copy(update={"models": eval_report.models[:1]})
    assert package.exit_code(good) == 0
    assert package.exit_code(good.model_copy(update={"unevaluated": {"gla": "no memory"}})) == 3
    assert package.exit_code(eval_report.model_copy(update={"candidates": ()})) == 3
    for report in (kernel_report, eval_report):
        assert package.exit_code(report.model_copy(update={"complete": False})) == 130
