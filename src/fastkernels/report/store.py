"""What `fk` has logged before, read back from MLflow: the reports of runs, oldest first.

MLflow runs in a process of its own here, too (mlflow_reader.py).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastkernels.errors import FileFormatError, UsageError
from fastkernels.records import EvalReport, KernelReport
from fastkernels.report import json as report_json
from fastkernels.report import mlflow
from fastkernels.settings import state_dir

MOST_RUNS = 1000
_SQLITE = "sqlite:///"
_READER = "fastkernels.report.mlflow_reader"
_JUDGE = "Judge something first: fk kernels --target rms_norm --candidates examples/candidates"
TIMEOUT_S = 600  # a server's reports are fetched one by one, the first time


@dataclass(frozen=True)
class Run:
    """A run of `fk kernels` or `fk eval`, and the folder of its artifacts."""

    id: str
    report: KernelReport | EvalReport

    @property
    def at(self) -> str:
        """ISO 8601, UTC; sorts by time."""
        return self.report.environment.started_at


def runs() -> tuple[list[Run], list[str]]:
    """The newest MOST_RUNS runs, oldest first; and what was left out, line by line. UsageError for a store
    that is empty, corrupt or out of reach."""
    require_store()
    found = _asked("report.json")
    notes = [f"run {run}: its report cannot be had: {why}" for run, why in found["failed"].items()]
    notes += [f"only the newest {MOST_RUNS} runs were read"] if found["more"] else []
    kept = []
    for entry in found["runs"]:
        try:
            report = report_json.load(entry["path"])
        except FileFormatError as error:
            notes.append(f"run {entry['run']} is left out: {error}")
            continue
        if isinstance(report, KernelReport | EvalReport):
            kept.append(Run(entry["run"], report))
    if not kept:
        left_out = f" ({notes[0]})" if notes else ""
        raise UsageError(f"{mlflow.place()} holds no run{left_out}. {_JUDGE}")
    return sorted(kept, key=lambda run: run.at), notes


def sources(run: Run) -> dict[str, str]:
    """Text of the candidates' files that were judged in a run, by `NAME/L1/rms_norm.py`."""
    found = _asked("candidates", only=run.id)
    if not found["runs"]:
        raise UsageError(f"run {run.id}: its sources cannot be had: {found['failed'][run.id]}")
    folder = Path(found["runs"][0]["path"])
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text(errors="replace") for path in files}


def require_store() -> None:
    """UsageError for our own database, or another one in a file, that is not there or is none of MLflow's: a
    reader would make one. What a server has, it says itself."""
    uri = mlflow.tracking_uri()
    if not uri.startswith(_SQLITE):
        return
    file = Path(uri.removeprefix(_SQLITE))
    if not file.is_file():
        raise UsageError(f"No run was logged yet: {file} is not there. {_JUDGE}")
    try:
        database = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
        try:
            database.execute("select count(*) from runs").fetchall()
        finally:
            database.close()
    except sqlite3.Error as error:
        advice = f"Move it away, and the next run begins a new one: mv {file} {file}.broken"
        raise UsageError(f"{file} cannot be read as MLflow's database: {error}. {advice}") from None


def _asked(artifact: str, only: str | None = None) -> dict[str, Any]:
    uri = mlflow.tracking_uri()
    of_server = state_dir() / "history" / hashlib.sha256(uri.encode()).hexdigest()[:12]
    asked = {
        "uri": uri,
        "experiments": ["fastkernels-kernels", "fastkernels-eval"],
        "artifact": artifact,
        "most": MOST_RUNS,
        "only": only,
        "cache": str(of_server) if uri.startswith("http") else None,
    }
    return json.loads(_answer([sys.executable, "-W", "ignore", "-m", _READER], json.dumps(asked)))


def _answer(command: Sequence[str], text: str) -> str:
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=mlflow.environment(),
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"no answer within {TIMEOUT_S} s from {mlflow.place()}: is its server up?") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        advice = "Is its server up, and may this folder be written? MLFLOW_TRACKING_URI names another store"
        raise UsageError(f"{mlflow.place()} cannot be read: {lines[-1]}. {advice}")
    return done.stdout.splitlines()[-1]
