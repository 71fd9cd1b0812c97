"""What `make test` leaves to `make test-all`, and what each file of tests costs.

pytest --whole                   every test. Without it none that is marked `whole`, and one in four of
                                 the parameters of those in SAMPLED
pytest --seconds FILE.json       CPU seconds of each file, with those of the processes that it started
"""

from __future__ import annotations

import json
import os
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

# Tests with a parameter for every kernel, case, checkpoint or mutant.
SAMPLED = (
    "tests/contract/test_cases.py",
    "tests/parity/",
    "tests/unit/audit/",
    "tests/unit/benchmarks/test_vs_reference.py",
    "tests/unit/engine/test_graphs.py",
    "tests/unit/engine/test_mutations.py",
    "tests/unit/engine/test_pieces.py",
    "tests/unit/examples/",
    "tests/unit/kernels/",
)
ONE_IN = 4
CPU = "cpu_s"
LEFT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="Every test, also those of make test-all.")
    parser.addoption("--seconds", type=Path, metavar="FILE", help="Write the CPU seconds of each file.")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--seconds"):
        config.pluginmanager.register(Seconds(path), "seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--whole"):
        return
    kept, left, begun = [], [], set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        is_sampled = item.nodeid.startswith(SAMPLED)
        is_first = function not in begun  # something of each test is run
        begun.add(function)
        is_chosen = not is_sampled or is_first or zlib.crc32(item.nodeid.encode()) % ONE_IN == 0
        (kept if is_chosen and item.get_closest_marker("whole") is None else left).append(item)
    config.stash[LEFT] = len(left)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (of_worker := getattr(session.config, "workeroutput", None)) is not None:  # of pytest-xdist
        of_worker["left"] = session.config.stash.get(LEFT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker of pytest-xdist collects the same tests."""
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT, 0):
        terminalreporter.write_line(f"{left} tests were left to make test-all")


class Seconds:
    """CPU seconds by file. Each process of pytest-xdist measures its own tests and sends them with its
    reports; the one that was started by hand writes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, float]] = defaultdict(lambda: {"tests": 0, CPU: 0.0})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Any:
        report = yield
        now = _cpu_s()
        report.user_properties.append((CPU, now - getattr(self, "_last", now)))
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        at = self.found[report.nodeid.partition("::")[0]]
        at["tests"] += report.when == "call"
        at[CPU] += report.user_properties[-1][1]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if "PYTEST_XDIST_WORKER" in os.environ:
            return
        rows = [{"file": name, **figures} for name, figures in sorted(self.found.items())]
        self.path.write_text(json.dumps(rows, indent=1) + "\n")


def _cpu_s() -> float:
    """Of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
