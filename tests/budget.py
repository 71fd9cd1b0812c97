"""What `make test` leaves to `make test-all`, and what each file of tests costs.

pytest --whole                   every test. Without it none that is marked `whole`, and of the parameters of
                                 those in SAMPLED one in as many as it says
pytest --seconds FILE.json       seconds of each file, and CPU seconds with those of what it started
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

# Tests with a parameter for every kernel, case, checkpoint or mutant, by how their names begin: of how many
# parameters one is run. The first that fits decides.
SAMPLED = {
    "tests/contract/test_cases.py": 4,
    "tests/parity/": 4,
    "tests/unit/audit/test_mutants.py": 4,
    "tests/unit/audit/test_tasks.py::test_wrong_kernels_fail_in_whole_models": 16,
    "tests/unit/audit/test_tasks.py": 4,
    "tests/unit/benchmarks/test_vs_reference.py": 4,
    "tests/unit/engine/core/test_decode_graphs.py": 4,
    "tests/unit/engine/core/test_mutations.py": 4,
    "tests/unit/engine/core/test_piecewise_graphs.py": 4,
    "tests/unit/examples/": 4,
    "tests/unit/kernels/": 4,
    "tests/unit/registry/test_build.py": 4,
}
LEFT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="Every test, also those of make test-all.")
    parser.addoption("--seconds", type=Path, metavar="FILE", help="Write the seconds of each file.")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--seconds"):
        config.pluginmanager.register(Seconds(path), "seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--whole"):
        return
    kept, left, begun = [], [], set()
    for item in items:
        one_in = next((n for begins, n in SAMPLED.items() if item.nodeid.startswith(begins)), 1)
        what = _what(item)
        is_first = what not in begun
        begun.add(what)
        is_chosen = is_first or zlib.crc32(item.nodeid.encode()) % one_in == 0
        (kept if is_chosen and item.get_closest_marker("whole") is None else left).append(item)
    config.stash[LEFT] = len(left)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def _what(item: pytest.Item) -> tuple[str, ...]:
    """Something of each test is run: of a test of cases, a case of each variant of each task."""
    function = item.nodeid.partition("[")[0]
    case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
    return (function, case.task, case.variant) if hasattr(case, "variant") else (function,)


def some(cases: Sequence[Any], config: pytest.Config) -> list[Any]:
    """Of the cases that one test walks over: of each variant the first, and of the others one in four."""
    if config.getoption("--whole"):
        return list(cases)
    first = {(case.task, case.variant): case for case in reversed(cases)}
    return [
        case
        for case in cases
        if first[case.task, case.variant] is case or zlib.crc32(f"{case.task}:{case.id}".encode()) % 4 == 0
    ]


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
    """What each file takes. Each process of pytest-xdist measures its own tests and sends them with its
    reports; the one that was started by hand writes the file.

    `cpu_s` lacks processes that nobody waited for, `s` has what a test waited for. `wall_s` is of the whole
    run on `beside` processes, `collect_s` of finding the tests, which each of them does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin = time.monotonic()
        self.collect_s = 0.0
        self.found: dict[str, dict[str, float]] = defaultdict(lambda: {"tests": 0, "s": 0.0, "cpu_s": 0.0})

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Any:
        begin = time.monotonic()
        found = yield
        self.collect_s = time.monotonic() - begin
        return found

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.collect_s = max(self.collect_s, getattr(node, "workeroutput", {}).get("collect_s", 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Any:
        report = yield
        now = _cpu_s()
        report.user_properties.append(("cpu_s", now - getattr(self, "_last", now)))
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        at = self.found[report.nodeid.partition("::")[0]]
        at["tests"] += report.when == "call"
        at["s"] += report.duration
        at["cpu_s"] += report.user_properties[-1][1]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (of_worker := getattr(session.config, "workeroutput", None)) is not None:
            of_worker["collect_s"] = self.collect_s
            return
        rows = [{"file": name, **figures} for name, figures in sorted(self.found.items())]
        run = {
            "wall_s": time.monotonic() - self.begin,
            "collect_s": self.collect_s,
            "beside": session.config.getoption("numprocesses", None) or 1,
            "left": session.config.stash.get(LEFT, 0),
            "failed": session.testsfailed,
            "rows": rows,
        }
        self.path.write_text(json.dumps(run, indent=1) + "\n")


def _cpu_s() -> float:
    """Of this process and of those that it started, waited for and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
