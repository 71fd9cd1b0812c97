"""Programs that are interrupted as a person would interrupt them."""

import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest


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
