"""Every run goes into MLflow: SQLite under the user's state folder, or wherever MLFLOW_TRACKING_URI points.

    experiment   fastkernels-kernels, fastkernels-eval, fastkernels-gate
    tags         the environment         parameters   the request
    metrics      each row's numbers      artifacts    the report as JSON, the candidates' sources

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
from fastkernels.gate.verdicts import middle
from fastkernels.records import EvalReport, GateReport, KernelReport, ModelResult
from fastkernels.report.json import dumps
from fastkernels.settings import resolve, state_dir

TIMEOUT_S = 90  # importing MLflow and creating its database take up to 30 s on a slow disk
_CHILD = "fastkernels.report.mlflow_child"
_ROW_METRICS = ("speedup", "baseline_us", "candidate_us", "noise_pct", "error_ratio", "roofline_pct")
_MODEL_METRICS = (
    "correctness",
    "noise_floor",
    "ruin_point",
    "speedup",
    "throughput_speedup",
    "latency_speedup",
    "kl",
)
_SCORE_METRICS = ("score", "speedup", "correctness", "coverage")

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
            env=_environment(),
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
    metrics = _metrics(report)
    environment = report.environment.model_dump(mode="json", exclude={"libraries", "isolation"})
    libraries = {f"library.{name}": found for name, found in report.environment.libraries.items()}
    return {
        "uri": tracking_uri(),
        "artifacts": None if os.environ.get("MLFLOW_TRACKING_URI") else str(state_dir() / "mlartifacts"),
        "experiment": f"fastkernels-{report.kind}",
        "name": name(report),
        "tags": {
            **{f"environment.{name}": str(value) for name, value in environment.items() if value is not None},
            **libraries,
            "environment.isolation": ", ".join(report.environment.isolation),
            "complete": str(report.complete).lower(),
        },
        "params": {name: str(value) for name, value in report.request.items() if value not in (None, [], ())},
        "metrics": {name: value for name, value in metrics.items() if value is not None},
        "report": dumps(report),
        "sources": [str(path) for path in sources],
    }


def name(report: Logged) -> str:
    """Of its run: what was judged."""
    if isinstance(report, EvalReport):
        return "+".join(report.candidates) or "self-test"
    if isinstance(report, GateReport):
        return f"{report.head} over {report.base}"
    return "+".join(dict.fromkeys(row.candidate for row in report.rows)) or "empty"


def _metrics(report: Logged) -> dict[str, float | None]:
    if isinstance(report, EvalReport):
        return _eval_metrics(report)
    return _gate_metrics(report) if isinstance(report, GateReport) else _kernel_metrics(report)


def _gate_metrics(report: GateReport) -> dict[str, float | None]:
    found: dict[str, float | None] = {f"summary/{v}": float(n) for v, n in report.summary.verdicts.items()}
    for row in report.rows:
        place = f"{row.task}:{row.variant}/{row.case}/{row.candidate}"
        found[f"{place}/speedup"] = middle(row.looks).speedup if row.looks else None
    return found | {"summary/geomean_speedup": report.summary.geomean_speedup}


def _kernel_metrics(report: KernelReport) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for row in report.rows:
        place = f"{row.task}:{row.variant}/{row.case}/{row.candidate}"
        found[f"{place}/passed"] = float(row.verdict == "PASSED")
        found |= {f"{place}/{name}": getattr(row, name) for name in _ROW_METRICS}
    summary = report.summary
    found |= {"summary/passed": float(summary.passed), "summary/failed": float(summary.failed)}
    return found | {"summary/geomean_speedup": summary.geomean_speedup, "summary/wall_s": summary.wall_s}


def _eval_metrics(report: EvalReport) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for model in report.models:
        found |= _model_metrics(model)
    if report.macroeval is not None:
        found |= {f"macroeval/{name}": getattr(report.macroeval, name) for name in _SCORE_METRICS}
    return found


def _model_metrics(model: ModelResult) -> dict[str, float | None]:
    place = f"{model.model}/{model.config}"
    found: dict[str, float | None] = {f"{place}/{name}": getattr(model, name) for name in _MODEL_METRICS}
    found |= {f"{place}/valid": float(model.valid), f"{place}/swap_sites": float(model.swap.sites)}
    return found | {f"{place}/{workload.name}/ratio": workload.ratio for workload in model.workloads}


def _environment() -> dict[str, str]:
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
