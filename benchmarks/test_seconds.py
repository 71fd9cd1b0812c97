"""What the tests cost, by group, and what they would at 48 architectures, from files of `pytest --seconds`.

    python benchmarks/test_seconds.py A.json B.json --out benchmarks/cpu/test_seconds.json

CPU seconds, of two cores' time. A group whose tests are made by architectures, tasks or kernels is taken to
grow with the architectures; the others are taken to stay.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from comparison import write

from fastkernels import registry
from fastkernels.measure.environment import environment

GROWS = (
    "contract",
    "parity",
    "e2e/test_eval_architectures.py",
    "unit/audit",
    "unit/benchmarks/test_vs_reference.py",
    "unit/kernels",
    "unit/registry",
    "unit/tasks",
)
ARCHITECTURES, CORES = 48, 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = [row for file in arguments.files for row in json.loads(file.read_text())]
    groups: dict[str, dict[str, float]] = defaultdict(lambda: {"tests": 0, "cpu_s": 0.0})
    for row in found:
        at = groups[group(row["file"])]
        at["tests"] += row["tests"]
        at["cpu_s"] += row["cpu_s"]
    known = len(registry.architectures())
    rows = []
    for name, at in sorted(groups.items()):
        then = at["cpu_s"] * (ARCHITECTURES / known if name in GROWS else 1)
        rows.append({"group": name, **at, "grows": name in GROWS, "cpu_s_at_48": then})
    total, then = (sum(row[key] for row in rows) for key in ("cpu_s", "cpu_s_at_48"))
    report = {
        "kind": "test-seconds",
        "architectures": known,
        "tests": sum(row["tests"] for row in rows),
        "cpu_s": total,
        "minutes_on_two_cores": total / CORES / 60,
        "minutes_at_48": then / CORES / 60,
        "rows": rows,
        "environment": environment("cpu").model_dump(),
    }
    write(report, arguments.out)


def group(file: str) -> str:
    """`tests/unit/kernels/test_glu.py` -> `unit/kernels`; a file of its own where GROWS names it."""
    path = Path(file).relative_to("tests")
    return path.as_posix() if path.as_posix() in GROWS else path.parent.as_posix()


if __name__ == "__main__":
    main()
