"""`fk history`: versions by hash, their parents and results; a store that cannot be read; `fk ui`, and a
server that is one."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fastkernels.cli import main
from fastkernels.records import CandidateFiles, KernelRow
from fastkernels.report import history, history_table, layout, mlflow, store
from fastkernels.report.history import Of

A, B, C = ("a" * 64, "b" * 64, "bc" + "0" * 62)


def row(case: str, speedup: float | None, half: float = 0.01, task: str = "L1/rms_norm") -> KernelRow:
    interval = None if speedup is None else (speedup * (1 - half), speedup * (1 + half))
    verdict = "WRONG(value)" if speedup is None else "PASSED"
    return KernelRow(
        task=task, variant="default", case=case, candidate="mine", verdict=verdict, contract="graph", links=8,
        speedup=speedup, speedup_ci=interval, noise_pct=0.1,
    )  # fmt: skip


@pytest.fixture
def run(kernel_report):
    """The n-th run, which judged files with this hash."""
    base = kernel_report.environment.model_copy(update={"device": "NVIDIA H200"})

    def run(number: int, sha256: str | None, *rows: KernelRow) -> store.Run:
        files = (CandidateFiles(name="mine", folders=("mine",), sha256=sha256),) if sha256 else ()
        changes = {
            "environment": base.model_copy(update={"started_at": f"2026-11-{number:02}T10:00:00+00:00"}),
            "request": {"size": "full"},
            "rows": rows,
            "candidates": files,
        }
        return store.Run(f"run{number}", kernel_report.model_copy(update=changes))

    return run


OF = Of("L1/rms_norm", "full", "NVIDIA H200")


def test_versions_parents_and_results(run):
    found = history.versions(
        [
            run(1, A, row("one", 1.2), row("two", 1.4)),
            run(2, B, row("one", 1.5), row("two", None)),
            run(3, None, row("one", 9.0)),
            run(4, B, row("two", 1.6)),
            run(5, A, row("one", 1.1)),
        ]
    )
    first, second = found
    assert (first.sha256, first.parent, second.sha256, second.parent) == (A, None, B, first)
    assert [r.id for r, _ in first.runs] == ["run1", "run5"]
    assert {case: m.speedup for case, m in first.results[OF].measured.items()} == {"one": 1.1, "two": 1.4}
    assert second.results[OF].failed == frozenset(), "what failed once and passes now has passed"
    assert second.results[OF].speedup == pytest.approx((1.5 * 1.6) ** 0.5)
    assert history.best(found)[OF] is second


def test_models_have_results_too(run, eval_report):
    mine = (CandidateFiles(name="mine", folders=("mine",), sha256=A),)
    reports = [eval_report.model_copy(update={"judged": judged}) for judged in (mine, ())]
    [version] = history.versions([store.Run(f"eval{n}", report) for n, report in enumerate(reports)])
    device = eval_report.environment.device
    good, bad = (version.results[Of(f"model {name}", "tiny", device)] for name in ("llama", "other"))
    ratios = {workload.name: workload.ratio for workload in eval_report.models[0].workloads}
    assert {name: one.speedup for name, one in good.measured.items()} == ratios
    assert (good.failed, bad.speedup, bad.failed) == (frozenset(), None, frozenset({"model"}))


def test_the_best_has_the_most_cases_and_fails_none(run):
    found = history.versions(
        [
            run(1, A, row("one", 1.2), row("two", 1.2)),
            run(2, B, row("one", 3.0)),
            run(3, C, row("one", 3.0), row("two", 3.0), row("three", None)),
        ]
    )
    assert history.best(found)[OF].sha256 == A


def test_a_change_is_one_beyond_both_bands(run):
    """A band: 1 % of interval and 1 % of noise, the least of the contract; together they hide 4 %."""
    assert history.versions([run(1, A, row("one", 1.0))])[0].results[OF].band == pytest.approx(0.02)
    for speedup, mark in ((1.03, "="), (1.05, "▲"), (0.97, "="), (0.95, "▼")):
        old, new = history.versions([run(1, A, row("one", 1.0)), run(2, B, row("one", speedup))])
        found = history.change(old.results[OF], new.results[OF])
        assert found is not None
        assert (found.mark, found.cases) == (mark, 1)
    old, new = history.versions([run(1, A, row("one", 1.0)), run(2, B, row("two", 2.0))])
    assert history.change(old.results[OF], new.results[OF]) is None, "no case is timed in both"


def test_tables(run):
    found = history.versions([run(1, A, row("one", 1.0)), run(2, B, row("one", 2.0))])
    text = layout.plain(history_table.lineage(found))
    child = "bbbbbbbb aaaaaaaa 2026-11-02 10:00 1/1 2.000 ± 2.0 % ▲ 2.000"
    assert child in [" ".join(line.split()) for line in text.splitlines()]
    assert "mine: L1/rms_norm, full, NVIDIA H200" in text
    assert "Best so far on NVIDIA H200, full" in text
    assert "L1/rms_norm  mine@bbbbbbbb" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    first, second = (
        line for line in layout.plain(history_table.trend(found)).splitlines() if line.startswith("2026")
    )
    assert first.endswith("± 2.0 %  |o"), "a band that is narrow beside what happened between two runs"
    assert second.endswith(" |o|")
    texts = ({"mine/L1/rms_norm.py": "a\nb\n"}, {"mine/L1/rms_norm.py": "a\nc\n"})
    lines = layout.plain(history_table.diff(found[0], found[1], texts)).splitlines()
    assert {"-b", "+c", "--- mine@aaaaaaaa/L1/rms_norm.py"} <= set(lines)


@pytest.fixture
def fk(run, monkeypatch):
    runs = [run(1, A, row("one", 1.0)), run(2, B, row("one", 2.0)), run(3, C, row("one", 2.0))]
    monkeypatch.setattr(store, "runs", lambda: (runs, []))
    return lambda *arguments: CliRunner().invoke(main, ["history", *arguments])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--diff", "b", "a"], "'b' may be mine@bbbbbbbb, mine@bc000000"),
        (["--diff", "d", "a"], "No version 'd'"),
        (["nine"], "Did you mean mine?"),
        (["--on", "h100"], "It has: L1/rms_norm on NVIDIA H200"),
        (["--trend", "--diff", "a", "bb"], "ask one at a time"),
        (["--json", "/dev/null/x"], "nothing can be written into"),
    ],
)
def test_bad_questions(fk, arguments: list[str], told: str):
    result = fk(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr


# ---------------------------------------------------------------- the store


@pytest.fixture
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FK_STATE_DIR", str(tmp_path / "state"))
    for name in ("MLFLOW_TRACKING_URI", "FK_TRACKING"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


@pytest.mark.parametrize("verb", ["history", "ui"])
def test_a_store_that_is_not_there_or_corrupt(state: Path, verb: str):
    def told() -> Result:
        result = CliRunner().invoke(main, [verb])
        assert result.exit_code == 2
        return result

    assert "No run was logged yet" in told().stderr
    assert not state.exists(), "reading makes nothing"
    state.mkdir()
    (state / "mlflow.db").write_bytes(b"not a database" * 100)
    assert "file is not a database. Move it away" in told().stderr
    (state / "mlflow.db").write_bytes(b"")
    assert "no such table: runs. Move it away" in told().stderr


@pytest.mark.slow
@pytest.mark.whole
def test_reports_come_back_from_the_store_and_a_spoilt_one_is_left_out(state: Path, run, capfd):
    for number, sha256 in ((1, A), (2, B)):
        assert mlflow.log(run(number, sha256, row("one", 1.0)).report, [])
    found, notes = store.runs()
    assert [(r.report.environment.started_at[:10], notes) for r in found] == [
        ("2026-11-01", []),
        ("2026-11-02", []),
    ]
    [first, _] = sorted((state / "mlartifacts").rglob("report.json"))
    first.write_text("{")
    found, notes = store.runs()
    assert (len(found), len(notes)) == (1, 1)
    assert "is left out" in notes[0]


def test_a_taken_port(state: Path, monkeypatch):
    monkeypatch.setattr(store, "require_store", lambda: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = CliRunner().invoke(main, ["ui", "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 2
    assert "Name another --port" in result.stderr


@pytest.mark.slow
@pytest.mark.whole
def test_a_server_has_the_page_and_takes_and_gives_runs(state: Path, run, tmp_path, monkeypatch):
    """MLflow's own server, started by `fk ui` on a store with a run."""
    source = tmp_path / "mine" / "L1" / "rms_norm.py"
    source.parent.mkdir(parents=True)
    source.write_text("class RMSNorm: ...\n")
    assert mlflow.log(run(1, A, row("one", 1.0)).report, [source])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "fastkernels", "ui", "--port", str(port)])
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                page = urllib.request.urlopen(address, timeout=5).read()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
        assert b"MLflow" in page
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert mlflow.log(run(2, B, row("one", 2.0)).report, [source])
        found, notes = store.runs()
        assert (len(found), notes) == (2, [])
        result = CliRunner().invoke(main, ["history", "--diff", "aa", "bb"])
        assert result.exit_code == 0, result.stderr
        assert "▲ 2.000" in result.stdout
        assert "The task files are the same" in result.stdout
        assert address in CliRunner().invoke(main, ["ui"]).stdout
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 130
    with socket.socket() as gone:
        assert gone.connect_ex(("127.0.0.1", port)) != 0, "its processes end with it"
    result = CliRunner().invoke(main, ["history"])
    assert result.exit_code == 2
    assert "Is its server up" in result.stderr
