"""What `fk audit` reports come to: which tasks may be judged by, and the margin of every case.

    python benchmarks/admission.py REPORT... --out benchmarks/h200/audit_full.json --resume

The reports are parts of one question, each of other cases. Kept are margins and what is not good: the
mutants of a thousand cases that fail as they must would be tens of megabytes. --resume keeps, of what `--out`
holds, the tasks that these reports do not audit; each task says which revision it was audited with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fastkernels import registry
from fastkernels.audit.admission import admit
from fastkernels.records import AuditReport


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="add to the tasks of --out")
    arguments = parser.parse_args()
    found = summary([AuditReport.model_validate_json(path.read_text()) for path in arguments.reports])
    if arguments.resume and arguments.out.is_file():
        found = joined(json.loads(arguments.out.read_text()), found)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print({key: value for key, value in found.items() if not isinstance(value, (list, dict))})


def summary(reports: Sequence[AuditReport]) -> dict[str, Any]:
    """Tasks are admitted anew, from the cases of all reports."""
    rows = sorted((row for report in reports for row in report.rows), key=lambda row: (row.task, row.case))
    tasks = [admit(task, list(its)) for task, its in groupby(rows, key=lambda row: row.task)]
    environment = reports[0].environment
    return _told(
        complete=all(report.complete for report in reports),
        unaudited=[reason for report in reports for reason in report.unaudited],
        tasks=[{**task.model_dump(mode="json"), "revision": environment.git_revision} for task in tasks],
        rows=[
            {
                **row.model_dump(exclude={"checks"}, mode="json"),
                "checks": len(row.checks),
                "bad": [check.model_dump(mode="json") for check in row.checks if check.good is False],
            }
            for row in rows
        ],
        environment=environment.model_dump(mode="json"),
    )


def joined(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Tasks that are audited again replace those from before."""
    again = {task["task"] for task in now["tasks"]}
    kept = {
        key: [entry for entry in before[key] if entry["task"] not in again] + now[key]
        for key in ("tasks", "rows")
    }
    # What could not be audited is told as "L1/rope case: reason".
    left = [reason for reason in before["unaudited"] if reason.split()[0] not in again]
    return _told(
        complete=before["complete"] and now["complete"],
        unaudited=left + now["unaudited"],
        tasks=sorted(kept["tasks"], key=lambda task: task["task"]),
        rows=sorted(kept["rows"], key=lambda row: (row["task"], row["case"])),
        environment=now["environment"],
    )


def _told(tasks: list[dict[str, Any]], rows: list[dict[str, Any]], **rest: Any) -> dict[str, Any]:
    """`left`: other tasks of the levels that were audited."""
    margins = [row["margin"] for row in rows if row["margin"] is not None]
    audited = {task["task"] for task in tasks}
    levels = {int(task[1]) for task in audited}
    of_levels = {entry.id for level in levels for entry in registry.find_tasks((), level)}
    return {
        "kind": "admission",
        "cases": len(rows),
        "checks": sum(row["checks"] for row in rows),
        "not_admitted": sum(not task["admitted"] for task in tasks),
        "smallest_margin": min(margins, default=None),
        "left": sorted(of_levels - audited),
        "tasks": tasks,
        "rows": rows,
        **rest,
    }


if __name__ == "__main__":
    main()
