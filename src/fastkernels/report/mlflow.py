"""Every run goes into MLflow: SQLite under the user's state folder, or wherever MLFLOW_TRACKING_URI points.

    experiment   fastkernels-kernels, fastkernels-eval, fastkernels-gate
    tags         the environment         parameters   the request
    metrics      metrics.py              artifacts    the report as JSON, the candidates' sources

Logging happens in a process of its own with a time limit: an unreachable server, a locked database or a
read-only home costs at most TIMEOUT_S and a warning, and MLflow's own logging, telemetry and global state
never reach this process. The setting `tracking` (FK_TRACKING=0) switches it off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastkernels.errors import FastKernelsError
from fastkernels.records import CandidateFiles, EvalReport, GateReport, KernelReport
from fastkernels.report.json import dumps
from fastkernels.report.metrics import metrics
from fastkernels.settings import resolve, state_dir

TIMEOUT_S = 90  # importing MLflow and creating its database take up to 30 s on a slow disk
_CHILD = "fastkernels.report.mlflow_child"

Logged = KernelReport | EvalReport | GateReport


def log(report: Logged, sources: Sequence[Path]) -> str | None:
    """Log a report; the id of its run, None if it is not stored. Never raises: what goes wrong is one line on
    stderr."""
    try:
        if not resolve().tracking:
            return None
        entry = json.dumps(payload(report, sources))
        child = [sys.executable, "-W", "ignore", "-m", _CHILD]
        done = subprocess.run(
            child,
            input=entry,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        return _warn(f"no answer within {TIMEOUT_S} s from {place()}")
    except (FastKernelsError, OSError, ValueError) as error:
        return _warn(str(error))
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return _warn(f"{lines[-1]} ({place()})")
    return done.stdout.split()[-1]


def tracking_uri() -> str:
    """Where runs go: MLFLOW_TRACKING_URI, else the database in the state folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{state_dir() / 'mlflow.db'}"


def place() -> str:
    """As `tracking_uri`, for a person; without a server's address where it holds a password."""
    chosen = os.environ.get("MLFLOW_TRACKING_URI", "")
    return "MLFLOW_TRACKING_URI" if "@" in chosen else tracking_uri()


def payload(report: Logged, sources: Sequence[Path]) -> dict[str, Any]:
    """What the child stores, as plain data."""
    machine = report.environment.model_dump(mode="json", exclude={"libraries", "isolation"})
    libraries = {f"library.{name}": found for name, found in report.environment.libraries.items()}
    return {
        "uri": tracking_uri(),
        "artifacts": None if os.environ.get("MLFLOW_TRACKING_URI") else str(state_dir() / "mlartifacts"),
        "experiment": f"fastkernels-{report.kind}",
        "name": name(report),
        "tags": {
            **{f"environment.{name}": str(value) for name, value in machine.items() if value is not None},
            **libraries,
            **{f"candidate.{judged.name}": judged.sha256[:12] for judged in _judged(report)},
            "environment.isolation": ", ".join(report.environment.isolation),
            "complete": str(report.complete).lower(),
        },
        "params": {name: str(value) for name, value in report.request.items() if value not in (None, [], ())},
        "metrics": metrics(report),
        "report": dumps(report),
        "sources": [str(path) for path in sources],
    }


def _judged(report: Logged) -> Sequence[CandidateFiles]:
    if isinstance(report, GateReport):
        return ()
    return report.candidates if isinstance(report, KernelReport) else report.judged


def name(report: Logged) -> str:
    """Of its run: what was judged."""
    if isinstance(report, EvalReport):
        return "+".join([one.name for one in report.judged] or report.candidates) or "self-test"
    if isinstance(report, GateReport):
        return f"{report.head} over {report.base}"
    return "+".join(dict.fromkeys(row.candidate for row in report.rows)) or "empty"


def environment() -> dict[str, str]:
    """Of the processes that import MLflow."""
    quick_and_quiet = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    return {**quick_and_quiet, **os.environ}


def _warn(reason: str) -> None:
    advice = "Reports are whole without it; FK_TRACKING=0 leaves it out"
    print(f"warning: not logged to MLflow: {reason}. {advice}", file=sys.stderr)
