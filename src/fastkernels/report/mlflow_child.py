"""The process that talks to MLflow: reads an entry of report/mlflow.py from stdin and stores it as a run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# Limits of MLflow's own API, for one request or one value.
_METRICS_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100
_KEY_CHARACTERS, _PARAM_CHARACTERS, _TAG_CHARACTERS = 250, 6000, 5000
_SQLITE = "sqlite:///"
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")


def store(entry: dict[str, Any]) -> str:
    """Store one run and return its id."""
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    if entry["artifacts"]:
        Path(entry["artifacts"]).mkdir(parents=True, exist_ok=True)  # and with it the database's folder
    with alone(entry["uri"]):
        client = MlflowClient(tracking_uri=entry["uri"])
        experiment = _experiment(client, entry)
    run = client.create_run(experiment, run_name=entry["name"][:_KEY_CHARACTERS])
    run_id = run.info.run_id
    now = int(time.time() * 1000)
    tags = [RunTag(_key(name), value[:_TAG_CHARACTERS]) for name, value in entry["tags"].items()]
    params = [Param(_key(name), value[:_PARAM_CHARACTERS]) for name, value in entry["params"].items()]
    metrics = [Metric(_key(name), value, now, 0) for name, value in entry["metrics"].items()]
    client.log_batch(run_id, tags=tags, params=params[:_PARAMS_AT_ONCE])
    for start in range(0, len(metrics), _METRICS_AT_ONCE):
        client.log_batch(run_id, metrics=metrics[start : start + _METRICS_AT_ONCE])
    client.log_text(run_id, entry["report"], "report.json")
    for path in map(Path, entry["sources"]):
        if path.is_file():
            # .../faster/L1/rms_norm.py -> candidates/faster/L1/rms_norm.py
            client.log_artifact(run_id, str(path), "/".join(["candidates", *path.parts[-3:-1]]))
    client.set_terminated(run_id)
    return run_id


@contextlib.contextmanager
def alone(uri: str) -> Iterator[None]:
    """In the body no other run makes or renews the same SQLite database: MLflow does so in dozens of steps,
    each of which fails where another process has done it, and may leave tables that fit no version."""
    database = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or not database.parent.is_dir():
        yield
        return
    with database.with_name(f"{database.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, also where the process is killed
        yield


def _experiment(client: MlflowClient, entry: dict[str, Any]) -> str:
    """The experiment's id. In our own database it needs a place for artifacts: MLflow's default is the
    working folder."""
    from mlflow.exceptions import MlflowException

    known = client.get_experiment_by_name(entry["experiment"])
    if known is None:
        place = Path(entry["artifacts"]).resolve().as_uri() if entry["artifacts"] else None
        try:
            return client.create_experiment(entry["experiment"], artifact_location=place)
        except MlflowException:  # another run has created it in the meantime
            known = client.get_experiment_by_name(entry["experiment"])
            if known is None:
                raise
    return known.experiment_id


def _key(name: str) -> str:
    """As MLflow takes it: like a path, so a model that is a folder loses its leading slash, `.` and `..`."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return _NOT_IN_KEYS.sub("_", "/".join(parts))[:_KEY_CHARACTERS]


def told(error: Exception) -> str:
    """In one line: SQLAlchemy's own ends with the address of a page about such errors in general."""
    first, *_ = str(error).strip().splitlines() or ["no reason given"]
    return f"{type(error).__name__}: {first}"


if __name__ == "__main__":
    try:
        print(store(json.load(sys.stdin)))
    except Exception as error:
        traceback.print_exc()
        sys.exit(told(error))
