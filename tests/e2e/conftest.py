"""Programs that are interrupted as a person would interrupt them, and a core for every process of tests."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def core_of_its_own() -> Iterator[None]:
    """One for each process of a parallel run of the tests: workers of every evaluation would be pinned to the
    last one, and wait for each other."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def interruptible() -> Iterator[Callable[..., subprocess.Popen]]:
    """Popen of a program that heeds Ctrl-C, also where the tests run in the background and ignore it."""
    started: list[subprocess.Popen] = []

    def start(command: list[str], env: dict[str, str]) -> subprocess.Popen:
        process = subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
