"""What `fk kernels --self-test` reports come to: how far from 1 the baseline's ratio to itself is.

    python benchmarks/self_test.py REPORT... --out benchmarks/h200/self_test.json.gz --resume

`worst_pct` and `median_abs_pct` are of |speed-up - 1| over the timed rows; `false_calls` are rows that the
report calls significantly faster or slower than the baseline; `unstable` rows have no ratio. --resume keeps,
of what `--out` holds, the cases that these reports have not; each row says with which revision it ran.
Rows are of cases of L1 and L2 that are still registered; `left` says how many of which of
their tasks are not there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from committed import write

from fastkernels import registry
from fastkernels.judge.summary import merge
from fastkernels.records import KernelReport, KernelRow
from fastkernels.report.json import load_kernels, text_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="add to the rows of --out")
    arguments = parser.parse_args()
    resumed = arguments.resume and arguments.out.is_file()
    before = json.loads(text_of(arguments.out))["rows"] if resumed else []
    found = summary([load_kernels(path) for path in arguments.reports], before)
    write(found, arguments.out)
    print({key: value for key, value in found.items() if key not in ("rows", "environment")})


def summary(reports: Sequence[KernelReport], before: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Parts of one self-test, each of other cases. before: rows of an earlier summary."""
    report = merge(reports)
    if not report.request["self_test"]:
        raise SystemExit("these are no self-tests: they judge candidates")
    found = {(row["task"], row["case"]): row for row in before}
    found |= {(row.task, row.case): _told(row, report.environment.git_revision) for row in report.rows}
    entries = [entry for level in (1, 2) for entry in registry.find_tasks((), level)]
    cases = {entry.id: {case.id for case in registry.cases(entry, "full")} for entry in entries}
    rows = [found[task, case] for task, case in sorted(found) if case in cases.get(task, ())]
    off_pct = [100 * abs(row["speedup"] - 1) for row in rows if row["speedup"] is not None]
    left = {task: sum((task, case) not in found for case in its) for task, its in cases.items()}
    return {
        "kind": "self-test",
        "median_abs_pct": statistics.median(off_pct) if off_pct else None,
        "worst_pct": max(off_pct, default=None),
        "false_calls": sum(row["significant"] for row in rows),
        "not_passed": sum(row["verdict"] not in ("PASSED", "UNSTABLE") for row in rows),
        "unstable": sum(row["verdict"] == "UNSTABLE" for row in rows),
        "cases": len(rows),
        "timed": sum(row["timed"] for row in rows),
        "left": {task: count for task, count in left.items() if count},
        "rows": rows,
        "environment": report.environment.model_dump(),
    }


def _told(row: KernelRow, revision: str | None) -> dict[str, Any]:
    return {
        "task": row.task,
        "case": row.case,
        "verdict": row.verdict,
        "timed": row.timed,
        "speedup": row.speedup if row.timed else None,
        "significant": bool(row.timed and row.significant),
        "baseline_us": row.baseline_us,
        "noise_pct": row.noise_pct,
        "revision": revision,
    }


if __name__ == "__main__":
    main()
