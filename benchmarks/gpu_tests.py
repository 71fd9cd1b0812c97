"""The outcome of tests on a GPU, as a report that names what failed and why.

    python benchmarks/gpu_tests.py tests/gpu/test_engine.py --out gpu_tests_engine.json
    python benchmarks/gpu_tests.py tests/gpu/test_pointwise_kernels.py -n 8 --out out.json

All other arguments are pytest's. What is interrupted (Ctrl-C) reports the tests that were reached, as not
complete. Exit code: pytest's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from committed import write

from fastkernels.measure.environment import environment

ROOT = Path(__file__).resolve().parent.parent
MOST_CHARACTERS = 300


class Outcomes:
    """What pytest says of every test, as its plugin."""

    def __init__(self) -> None:
        self.by_test: dict[str, str] = {}
        self.skips: Counter[str] = Counter()  # reason -> tests
        self.failures: list[dict[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each phase of a test: a failed one decides, whichever it is."""
        if report.failed:
            if self.by_test.get(report.nodeid) != "failed":
                self.failures.append({"test": report.nodeid, "says": _said(report)})
            self.by_test[report.nodeid] = "failed"
        elif report.skipped:
            self.by_test.setdefault(report.nodeid, "skipped")
            self.skips[_reason(report)] += 1
        elif report.when == "call":
            self.by_test.setdefault(report.nodeid, "passed")

    def counts(self) -> dict[str, int]:
        found = Counter(self.by_test.values())
        return {outcome: found[outcome] for outcome in ("passed", "failed", "skipped")}


def _said(report: pytest.TestReport) -> str:
    """Its last line that is an error, in short."""
    lines = [line.removeprefix("E").strip() for line in report.longreprtext.splitlines() if line[:1] == "E"]
    return (next(filter(None, lines), "") or report.longreprtext.strip())[:MOST_CHARACTERS]


def _reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")[:MOST_CHARACTERS]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments, of_pytest = parser.parse_known_args()
    outcomes, begin = Outcomes(), time.monotonic()
    code = pytest.main(["--rootdir", str(ROOT), *of_pytest], plugins=[outcomes])
    report: dict[str, Any] = {
        "kind": "gpu-tests",
        "arguments": of_pytest,
        **outcomes.counts(),
        "seconds": time.monotonic() - begin,
        "complete": code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED),
        "failures": outcomes.failures,
        "skips": [{"reason": reason, "tests": count} for reason, count in outcomes.skips.most_common()],
        "environment": environment("cuda" if torch.cuda.is_available() else "cpu").model_dump(),
    }
    write(report, arguments.out)
    sys.exit(code)


if __name__ == "__main__":
    main()
