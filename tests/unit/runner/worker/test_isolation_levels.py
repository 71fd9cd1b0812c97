"""Candidates stand behind the best walls from within which their device can be used."""

from __future__ import annotations

import pytest

from fastkernels.errors import MachineError
from fastkernels.runner.worker import isolation_levels
from fastkernels.runner.worker.isolation_levels import WALLS, Walls
from fastkernels.runner.worker.pool import WorkerDied


@pytest.fixture
def machine(monkeypatch):
    """A machine whose device is seen from within these walls only; who was started, and is not closed."""
    started: list[Walls] = []
    alive: list[Walls] = []

    def made(sees: tuple[Walls, ...]) -> tuple[list[Walls], list[Walls]]:
        class Worker:
            def __init__(self, name: str, threads: int, **how: bool) -> None:
                self.walls = Walls(**how)

            def __enter__(self) -> Worker:
                alive.append(self.walls)
                return self

            def __exit__(self, *_: object) -> None:
                alive.remove(self.walls)

            def start(self, side: str, **arguments: object) -> None:
                started.append(self.walls)
                if self.walls not in sees:
                    raise WorkerDied("CRASHED", "no CUDA device is seen", "")

        monkeypatch.setattr(isolation_levels, "Worker", Worker)
        return started, alive

    isolation_levels.with_device.cache_clear()
    yield made
    isolation_levels.with_device.cache_clear()


@pytest.mark.parametrize("best", range(3))
def test_the_first_from_which_the_device_is_seen(machine, best: int) -> None:
    started, alive = machine(WALLS[best:])
    assert isolation_levels.with_device("cuda") == WALLS[best]
    assert isolation_levels.with_device("cuda") == WALLS[best], "of a machine, tried once"
    assert started == list(WALLS[: best + 1])
    assert not alive


def test_a_device_that_nobody_sees_is_the_machines_failure(machine) -> None:
    machine(())
    with pytest.raises(MachineError, match="no worker can use the device cuda: no CUDA device is seen"):
        isolation_levels.with_device("cuda")


def test_a_cpu_is_seen_from_everywhere(machine) -> None:
    started, _ = machine(())
    assert isolation_levels.with_device("cpu") == WALLS[0]
    assert not started
