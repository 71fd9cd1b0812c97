"""What `fk audit` reports come to: which tasks may be judged by, and the margin of every case.

    python benchmarks/admission.py REPORT... --out benchmarks/h200/audit_level_1.json

The reports are parts of one question, each of other cases. Kept are margins and what is not good: the
mutants of a thousand cases that fail as they must would be tens of megabytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fastkernels.audit.admission import admit
from fastkernels.records import AuditReport


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found = summary([AuditReport.model_validate_json(path.read_text()) for path in arguments.reports])
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print({key: value for key, value in found.items() if not isinstance(value, (list, dict))})


def summary(reports: Sequence[AuditReport]) -> dict[str, Any]:
    """Tasks are admitted anew, from the cases of all reports."""
    rows = sorted((row for report in reports for row in report.rows), key=lambda row: (row.task, row.case))
    tasks = [admit(task, list(its)) for task, its in groupby(rows, key=lambda row: row.task)]
    margins = [row.margin for row in rows if row.margin is not None]
    return {
        "kind": "admission",
        "complete": all(report.complete for report in reports),
        "cases": len(rows),
        "checks": sum(len(row.checks) for row in rows),
        "not_admitted": sum(not task.admitted for task in tasks),
        "smallest_margin": min(margins, default=None),
        "unaudited": [reason for report in reports for reason in report.unaudited],
        "tasks": [task.model_dump() for task in tasks],
        "rows": [
            {
                **row.model_dump(exclude={"checks"}),
                "bad": [check.model_dump() for check in row.checks if check.good is False],
            }
            for row in rows
        ],
        "environment": reports[0].environment.model_dump(),
    }


if __name__ == "__main__":
    main()
