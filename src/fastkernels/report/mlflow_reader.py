"""The process that reads MLflow: gets a request of report/store.py from stdin and prints what the store has.

Reports of a server are kept in a folder of ours: a run that has ended does not change.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from fastkernels.report.mlflow_child import alone, told


def read(asked: dict[str, Any]) -> dict[str, Any]:
    """`runs`: the newest of the experiments, or `only` one, each with the path of its artifact. `failed`:
    those whose artifact is not to be had, and why. `more`: whether there are older ones."""
    from mlflow.tracking import MlflowClient

    with alone(asked["uri"]):
        client = MlflowClient(tracking_uri=asked["uri"])
        client.search_experiments(max_results=1)  # makes or renews a database
    if asked["only"] is None:
        known = [client.get_experiment_by_name(name) for name in asked["experiments"]]
        ids = [experiment.experiment_id for experiment in known if experiment is not None]
        newest = {"max_results": asked["most"], "order_by": ["start_time DESC"]}
        found = client.search_runs(ids, **newest) if ids else []
    else:
        found = [client.get_run(asked["only"])]
    runs, failed = [], {}
    for run in found:
        run_id = run.info.run_id
        try:
            file = _fetched(client, run_id, asked["artifact"], asked["cache"])
        except Exception as error:
            failed[run_id] = told(error)
            continue
        runs.append({"run": run_id, "path": file})
    return {"runs": runs, "failed": failed, "more": len(found) == asked["most"]}


def _fetched(client: Any, run_id: str, artifact: str, cache: str | None) -> str:
    """A path here. Artifacts of a local store lie here already."""
    if cache is None:
        return client.download_artifacts(run_id, artifact)
    folder = Path(cache) / run_id
    if not (folder / artifact).exists():
        folder.mkdir(parents=True, exist_ok=True)
        client.download_artifacts(run_id, artifact, str(folder))
    return str(folder / artifact)


if __name__ == "__main__":
    try:
        print(json.dumps(read(json.load(sys.stdin))))
    except Exception as error:
        traceback.print_exc()
        sys.exit(told(error))
