"""Candidates are isolated at the best level at which their device can be used."""

from __future__ import annotations

import pytest

from fastkernels.errors import MachineError
from fastkernels.runner.worker import isolation_levels
from fastkernels.runner.worker.isolation_levels import LEVELS, IsolationLevel
from fastkernels.runner.worker.pool import WorkerDied


@pytest.fixture
def machine(monkeypatch):
    """A machine whose device is seen at these levels only; who was started, and is not closed."""
    started: list[IsolationLevel] = []
    alive: list[IsolationLevel] = []

    def made(sees: tuple[IsolationLevel, ...]) -> tuple[list[IsolationLevel], list[IsolationLevel]]:
        class Worker:
            def __init__(self, name: str, threads: int, **how: bool) -> None:
                self.level = IsolationLevel(**how)

            def __enter__(self) -> Worker:
                alive.append(self.level)
                return self

            def __exit__(self, *_: object) -> None:
                alive.remove(self.level)

            def start(self, side: str, **arguments: object) -> None:
                started.append(self.level)
                if self.level not in sees:
                    raise WorkerDied("CRASHED", "no CUDA device is seen", "")

        monkeypatch.setattr(isolation_levels, "Worker", Worker)
        return started, alive

    isolation_levels.with_device.cache_clear()
    yield made
    isolation_levels.with_device.cache_clear()


@pytest.mark.parametrize("best", range(3))
def test_the_first_from_which_the_device_is_seen(machine, best: int) -> None:
    started, alive = machine(LEVELS[best:])
    assert isolation_levels.with_device("cuda") == LEVELS[best]
    assert isolation_levels.with_device("cuda") == LEVELS[best], "of a machine, tried once"
    assert started == list(LEVELS[: best + 1])
    assert not alive


def test_a_device_that_nobody_sees_is_the_machines_failure(machine) -> None:
    machine(())
    with pytest.raises(MachineError, match="no worker can use the device cuda: no CUDA device is seen"):
        isolation_levels.with_device("cuda")


def test_a_cpu_is_seen_from_everywhere(machine) -> None:
    started, _ = machine(())
    assert isolation_levels.with_device("cpu") == LEVELS[0]
    assert not started
