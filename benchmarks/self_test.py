"""What `fk kernels --self-test` reports come to: how far from 1 the baseline's ratio to itself is.

    python benchmarks/self_test.py REPORT... --out benchmarks/h200/self_test.json

`worst_pct` and `median_abs_pct` are of |speed-up - 1| over the timed rows; `false_calls` are rows that the
report calls significantly faster or slower than the baseline; `unstable` rows have no ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastkernels.judge.summary import merge
from fastkernels.records import KernelReport
from fastkernels.report.json import load_kernels


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found = summary([load_kernels(path) for path in arguments.reports])
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print({key: value for key, value in found.items() if key not in ("rows", "environment")})


def summary(reports: Sequence[KernelReport]) -> dict[str, Any]:
    """Parts of one self-test, each of other cases."""
    report = merge(reports)
    if not report.request["self_test"]:
        raise SystemExit("these are no self-tests: they judge candidates")
    timed = [row for row in report.rows if row.timed]
    off_pct = [100 * abs(row.speedup - 1) for row in timed if row.speedup is not None]
    return {
        "kind": "self-test",
        "median_abs_pct": statistics.median(off_pct) if off_pct else None,
        "worst_pct": max(off_pct, default=None),
        "false_calls": sum(bool(row.significant) for row in timed),
        "not_passed": sum(row.verdict not in ("PASSED", "UNSTABLE") for row in report.rows),
        "unstable": sum(row.verdict == "UNSTABLE" for row in report.rows),
        "timed": len(timed),
        "rows": [
            {
                "task": row.task,
                "case": row.case,
                "verdict": row.verdict,
                "speedup": row.speedup,
                "baseline_us": row.baseline_us,
                "noise_pct": row.noise_pct,
            }
            for row in timed
        ],
        "environment": report.environment.model_dump(),
    }


if __name__ == "__main__":
    main()
