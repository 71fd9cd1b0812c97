"""What the judge saw beside the claims of honest code, over `fk kernels` reports: figures for its bounds.

    python benchmarks/windows.py REPORT... --out benchmarks/h100/windows.json

The reports are --self-test or --providers. By contract: `most_hidden_us` of windows beyond claims and beyond
both baselines', which runner/kernel_trial/trial.py bounds; `most_apart_us` of two baselines' windows;
`most_alone_us` of what a link alone loses beyond a quarter of its time in the chain and beyond the baseline's
loss; `least_walk` of walks over arguments of links that did not run, over the baseline's.
runner/kernel_trial/claim_checks.py bounds the last two.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastkernels.records import KernelReport, KernelRow
from fastkernels.report.json import load_kernels
from fastkernels.runner.kernel_trial.claim_checks import lost_alone


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found = summary([load_kernels(path) for path in arguments.reports])
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["rows"], indent=1))


def summary(reports: Sequence[KernelReport]) -> dict[str, Any]:
    """Of rows that have figures; those that were refused are named."""
    for report in reports:
        if not (report.request["self_test"] or report.request["providers"]):
            raise SystemExit("a report on candidates: nobody knows whether they are honest")
    by_contract = defaultdict(list)
    for row in (row for report in reports for row in report.rows if row.integrity is not None):
        by_contract[row.contract].append(row)
    return {
        "kind": "windows",
        "rows": [
            {"contract": contract, **_of_contract(by_contract[contract])} for contract in sorted(by_contract)
        ],
        "refused": [
            f"{row.candidate} {row.task} {row.case}: {row.verdict}"
            for report in reports
            for row in report.rows
            if row.verdict not in ("PASSED", "UNSTABLE", "UNSUPPORTED")
        ],
        "environment": reports[0].environment.model_dump(),
    }


def _of_contract(rows: Sequence[KernelRow]) -> dict[str, Any]:
    seen = [row.integrity for row in rows if row.integrity is not None]
    alone = [loss for row in rows if (loss := _lost_alone(row)) is not None]
    walks = [one.walk_us[0] / min(one.walk_us[1:]) for one in seen if one.walk_us]
    return {
        "cases": len(seen),
        "most_hidden_us": max(one.hidden_us for one in seen),
        "most_apart_us": max(abs(one.beyond_us[1] - one.beyond_us[2]) for one in seen),
        "alone": len(alone),
        "most_alone_us": max(alone, default=None),
        "walks": len(walks),
        "least_walk": min(walks, default=None),
    }


def _lost_alone(row: KernelRow) -> float | None:
    """us."""
    if row.integrity is None or row.integrity.alone_us is None or not (row.candidate_us and row.baseline_us):
        return None
    ours, *theirs = row.integrity.alone_us
    return lost_alone(ours, row.candidate_us, sum(theirs) / 2, row.baseline_us)


if __name__ == "__main__":
    main()
