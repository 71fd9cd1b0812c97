"""How often the 95 % interval of a workload holds 1 where both sides of `fk eval` are the same.

    python benchmarks/eval_coverage.py --runs 2 --out benchmarks/cpu/self_test_coverage.json

Self-tests of every tiny model, so many times; a row for each workload. A row that says `unstable` claims
nothing: `held` is the share of the others whose interval holds 1, `held_of_all` of all.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from committed import write

from fastkernels import registry
from fastkernels.measure.environment import environment
from fastkernels.records import EvalReport
from fastkernels.runner.models.eval import run_eval
from fastkernels.runner.models.eval_request import EvalRequest


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--beside", default="", help="what else ran on the machine, in words")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for run in range(arguments.runs):
        for architecture in registry.architectures():
            request = EvalRequest.parse(
                models=[architecture.id], self_test=True, size="tiny", device="cpu", suite="full"
            )
            rows += rows_of(run_eval(request), run)
            write(summary(rows, arguments.beside), arguments.out)
            print(architecture.id, rows[-1], flush=True)


def rows_of(report: EvalReport, run: int) -> list[dict[str, Any]]:
    return [
        {
            "run": run,
            "model": model.model,
            "workload": workload.name,
            "rounds": len(workload.baseline),
            "ratio": workload.ratio,
            "ratio_ci": workload.ratio_ci,
            "unstable": workload.unstable,
        }
        for model in report.models
        for workload in model.workloads
    ]


def summary(rows: list[dict[str, Any]], beside: str) -> dict[str, Any]:
    claims = [row for row in rows if not row["unstable"]]
    return {
        "kind": "eval-coverage",
        "workloads": len(rows),
        "unstable": len(rows) - len(claims),
        "held": _share(claims),
        "held_of_all": _share(rows),
        "beside": beside,
        "rows": rows,
        "environment": environment("cpu").model_dump(mode="json"),
    }


def _share(rows: list[dict[str, Any]]) -> float | None:
    held = [row["ratio_ci"][0] <= 1 <= row["ratio_ci"][1] for row in rows]
    return sum(held) / len(held) if held else None


if __name__ == "__main__":
    main()
