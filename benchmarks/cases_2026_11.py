"""The 24 inputs that failed on 2026-11-28, each with the tests that hold the right outcome now.

    python benchmarks/cases_2026_11.py --out benchmarks/cpu/cases_2026_11.json

cases_2026_11.yaml says of each row what a user types, and which tests hold what is right. This program runs
the tests; a row's `passed` is what they said. `seen` is what the command showed when it was run by hand.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from committed import write

from fastkernels.measure.environment import environment

HERE = Path(__file__).parent
ROOT = HERE.parent
_WORDS = ("PASSED", "FAILED", "ERROR", "SKIPPED")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    cases = yaml.safe_load((HERE / "cases_2026_11.yaml").read_text(encoding="utf-8"))
    said = outcomes([test for case in cases for test in case["tests"]])
    rows = [{**case, **of_row(case["tests"], said)} for case in cases]
    found = {
        "kind": "cases-2026-11",
        "cases": len(rows),
        "passed": sum(row["passed"] for row in rows),
        "rows": rows,
        "environment": environment("cpu").model_dump(mode="json"),
    }
    print({row["row"]: row["passed"] for row in rows})
    write(found, arguments.out)


def outcomes(tests: list[str]) -> dict[str, str]:
    """Of each test that ran, by its id: PASSED, FAILED or SKIPPED."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--whole",
        "-q",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "-rA",
        *dict.fromkeys(tests),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    words = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return {
        pair[1].partition(" - ")[0]: pair[0]
        for pair in words
        if pair and pair[0] in _WORDS and len(pair) == 2
    }


def of_row(tests: list[str], said: dict[str, str]) -> dict[str, Any]:
    """Whether every test that the row names ran, and all of them passed."""
    ran = {test: [word for name, word in said.items() if name.startswith(test)] for test in tests}
    return {
        "passed": all(words and set(words) == {"PASSED"} for words in ran.values()),
        "ran": sum(map(len, ran.values())),
    }


if __name__ == "__main__":
    main()
