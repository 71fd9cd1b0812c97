"""What the tests take, by group, and what they would at 48 architectures, from files of `pytest --seconds`.

    make test-seconds                              on a machine that does nothing else
    python benchmarks/test_seconds.py A.json B.json --out benchmarks/cpu/test_seconds.json

The runs came one after the other. A group whose tests are made by architectures, tasks or kernels is taken to
grow with the architectures, and so is collection; the others are taken to stay.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from comparison import write

from fastkernels import registry
from fastkernels.measure.environment import environment

GROWS = (
    "contract",
    "parity",
    "e2e/test_eval_architectures.py",
    "unit/audit/test_tasks.py",
    "unit/benchmarks/test_vs_reference.py",
    "unit/cli/test_show.py",
    "unit/kernels",
    "unit/loader",
    "unit/registry",
    "unit/runner/kernel_trial/test_compile_check.py",
    "unit/tasks",
    "unit/test_architecture.py",
)
COLLECTION = "(collection)"
ARCHITECTURES = 48


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = report([json.loads(file.read_text()) for file in arguments.files], len(registry.architectures()))
    write({**found, "environment": environment("cpu").model_dump()}, arguments.out)


def report(runs: list[dict[str, Any]], architectures: int) -> dict[str, Any]:
    """`share_s`: of a group in the time of the whole, as several tests of a run are under way at once."""
    groups: dict[str, dict[str, float]] = defaultdict(lambda: {"tests": 0, "share_s": 0.0, "cpu_s": 0.0})
    for run in runs:
        for row in run["rows"]:
            at = groups[group(row["file"])]
            at["tests"] += row["tests"]
            at["share_s"] += row["s"] / run["beside"]
            at["cpu_s"] += row["cpu_s"]
        groups[COLLECTION]["share_s"] += run["collect_s"]
    more = ARCHITECTURES / architectures
    rows = [
        {"group": name, **at, "share_s_at_48": at["share_s"] * (more if name in (*GROWS, COLLECTION) else 1)}
        for name, at in sorted(groups.items(), key=lambda item: -item[1]["share_s"])
    ]
    wall_s = sum(run["wall_s"] for run in runs)
    return {
        "kind": "test-seconds",
        "architectures": architectures,
        "tests": sum(row["tests"] for row in rows),
        "left": sum(run["left"] for run in runs),
        "failed": sum(run["failed"] for run in runs),
        "minutes": wall_s / 60,
        "minutes_at_48": (wall_s + sum(row["share_s_at_48"] - row["share_s"] for row in rows)) / 60,
        "rows": rows,
    }


def group(file: str) -> str:
    """`tests/unit/kernels/test_glu.py` -> `unit/kernels`; a file of its own where GROWS names it."""
    path = Path(file).relative_to("tests")
    return path.as_posix() if path.as_posix() in GROWS else path.parent.as_posix()


if __name__ == "__main__":
    main()
