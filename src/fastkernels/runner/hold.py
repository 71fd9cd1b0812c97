"""A device that stands still between two words of the judge's, beside the gate at which its worker does.

    judge                                     worker
    asks for `go`                   ──▶       enqueues: hold, inputs in, flush, the call, results out, done
    waits at the gate               ◀──       gate.wait()
    stops it, and enqueues on a stream of its own:
        hold, arguments into the inbox, let the worker's device go, wait for `done`, take the results
    lets its own stream go: clock   ──▶       the device works, and no process does
    sees that its stream has ended: clock
    lets it through the gate, waits for an answer

Streams wait for a value in memory, so nobody's host lies between the two moments: windows of equal code
differ by 2 to 4 us, where those that hold a request and an answer differ by 50 to 100 (docs/measured.md).
Arguments reach memory that the worker sees, and results are taken from it, within the window.

A call that waits for the device never comes to the gate: the judge lets the device go all the same once its
patience ends, and the sample says that it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from fastkernels.measure.cuda import Driver
from fastkernels.runner.gate import Gate
from fastkernels.runner.shared import Arena, Attached, Ticket, Want

# Of a call whose launches do not all come before the device works: as long as the longest spin.
PATIENCE_S = 0.05
_YES = 1
_GO, _DONE = "go", "done"
_LOOKS = 100  # at the word between two at the clock


class Hold:
    """The judge's end, for one worker. Everything but `open` and `passed` may take its time."""

    def __init__(self) -> None:
        self._driver = Driver()
        wanted = [Want(name, (), torch.int32) for name in (_GO, _DONE)]
        self._words = Arena.create(wanted, "cuda", writable=True)
        self._stream, self._other = torch.cuda.Stream(), torch.cuda.Stream()
        # The judge's own, which no worker sees: the host writes the first, and the device the second.
        self._pinned = torch.zeros(2, dtype=torch.int32, pin_memory=True)
        self._own = self._pinned.numpy()

    @property
    def ticket(self) -> Ticket:
        return self._words.ticket

    def shut(self) -> None:
        """From now on the device waits, if the worker has it wait."""
        self._own[:] = 0
        self._words.poison()

    def arm(self, bring: Callable[[], None], take: Callable[[], None]) -> None:
        """Enqueue what happens once `open` is called: `bring` and `take` enqueue copies on the current
        stream."""
        torch.cuda.synchronize()
        driver, stream = self._driver, self._stream.cuda_stream
        mine = self._pinned.data_ptr(), self._pinned.data_ptr() + self._pinned.element_size()
        with torch.cuda.stream(self._stream):
            driver.wait_for(mine[0], _YES, stream)
            bring()
            driver.tell(self._address(_GO), _YES, stream)
            driver.wait_for(self._address(_DONE), _YES, stream)
            take()
            driver.tell(mine[1], _YES, stream)

    def open(self) -> int:
        """Returns when, by time.perf_counter_ns()."""
        begin_ns = time.perf_counter_ns()
        self._own[0] = _YES
        return begin_ns

    def passed(self, within_s: float) -> int | None:
        """When the results had been taken, by time.perf_counter_ns(); None if they were not within so
        long."""
        own, clock = self._own, time.perf_counter_ns
        deadline_ns = clock() + int(within_s * 1e9)
        while clock() < deadline_ns:
            for _ in range(_LOOKS):
                if own[1] == _YES:
                    return clock()
        return None

    def release(self) -> None:
        """Nothing waits any more, whatever became of the worker since `shut`."""
        if self._own[1] == _YES:
            return
        self._own[0] = _YES
        for name in (_GO, _DONE):
            self._driver.tell(self._address(name), _YES, self._other.cuda_stream)
        self._other.synchronize()
        self._stream.synchronize()

    def close(self) -> None:
        self._words.close()

    def _address(self, name: str) -> int:
        return self._words.tensors[name].data_ptr()


class Held:
    """A worker's end. `stream`: of all that is enqueued between `begin` and `end`."""

    def __init__(self, gate: Gate, words: Attached, driver: Driver, stream: int) -> None:
        self._gate, self._stream = gate, stream
        self._wait_for, self._tell = driver.wait_for, driver.tell
        self._go, self._done = words.address(_GO), words.address(_DONE)

    def begin(self) -> None:
        """The device does nothing that is enqueued from now on before the judge lets it."""
        self._wait_for(self._go, _YES, self._stream)

    def end(self) -> None:
        """Once the device has done it, it says so. Returns when the judge has taken the results."""
        self._tell(self._done, _YES, self._stream)
        self._gate.wait()
