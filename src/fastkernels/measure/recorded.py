"""Raw copies and fills that are enqueued again and again, hundreds of them for a chain of calls.

One at a time they take the host some microseconds each, and the spin that hides the host has to outlast them.
On CUDA they are recorded once as a graph, which one launch enqueues; elsewhere they are simply made again.
Addresses and sizes are those of the recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fastkernels.measure.cuda import Driver

Work = Callable[[], None]


class Recorded(Protocol):
    def __call__(self) -> None:
        """Enqueue all of it."""
        ...

    def close(self) -> None: ...


class Repeated:
    """Not recorded: what `work` does is done again."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self) -> None:
        self._work()

    def close(self) -> None:
        """Nothing is held."""


class Replayed:
    """An executable graph on a stream."""

    def __init__(self, driver: Driver, executable: int, stream: int) -> None:
        self._driver, self._executable, self._stream = driver, executable, stream

    def __call__(self) -> None:
        self._driver.launch(self._executable, self._stream)

    def close(self) -> None:
        self._driver.drop(self._executable)
