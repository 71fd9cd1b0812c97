"""What `make test` leaves to `make test-all`, and what each file of tests costs.

@pytest.mark.sampled     one in four of a test's parameters, by a hash of their names; all with --whole
@pytest.mark.whole       with --whole alone

pytest --whole                   every test
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

ONE_IN = 4
CPU = "cpu_s"
LEFT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="Every test, also those of make test-all.")
    parser.addoption("--seconds", type=Path, metavar="FILE", help="Write the CPU seconds of each file.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sampled: one in four of its parameters, but with --whole")
    config.addinivalue_line("markers", "whole: with --whole alone")
    if path := config.getoption("--seconds"):
        config.pluginmanager.register(Seconds(path), "seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--whole"):
        return
    kept, left, begun = [], [], set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        is_sampled = item.get_closest_marker("sampled") is not None
        is_first = function not in begun  # of each test something is run
        begun.add(function)
        is_chosen = is_first or zlib.crc32(item.nodeid.encode()) % ONE_IN == 0
        stays = item.get_closest_marker("whole") is None and (not is_sampled or is_chosen)
        (kept if stays else left).append(item)
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
