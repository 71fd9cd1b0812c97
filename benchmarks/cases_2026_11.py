"""The 24 inputs that failed on 2026-11-28, each with the tests that hold the right outcome now.

    python benchmarks/cases_2026_11.py --out benchmarks/cpu/cases_2026_11.json

cases_2026_11.yaml says of each row what a user types, and which tests hold what is right. This program runs
the tests; a row's `passed` is what they said. `seen` is what the command showed when it was run by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from fastkernels.measure.environment import environment

HERE = Path(__file__).parent
ROOT = HERE.parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    cases = yaml.safe_load((HERE / "cases_2026_11.yaml").read_text(encoding="utf-8"))
    rows = []
    for case in cases:
        rows.append({**case, **outcome(case["tests"])})
        print(case["row"], "passed" if rows[-1]["passed"] else "FAILED", flush=True)
    found = {
        "kind": "cases-2026-11",
        "cases": len(rows),
        "passed": sum(row["passed"] for row in rows),
        "rows": rows,
        "environment": environment("cpu").model_dump(mode="json"),
    }
    arguments.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def outcome(tests: list[str]) -> dict[str, Any]:
    """Whether all of these tests passed, none of them skipped."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.strip().splitlines()
    passed = done.returncode == 0 and not any(line.startswith("SKIPPED") for line in said)
    return {
        "passed": passed,
        "seconds": round(time.monotonic() - begin, 1),
        "failure": None if passed else "\n".join(said[-5:]),
    }


if __name__ == "__main__":
    main()
