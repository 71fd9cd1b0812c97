"""A device that stands still between two words of the judge's, beside the gate at which its worker does.

    judge                                     worker
    asks for `go`                   ──▶       enqueues: hold, event, the call, event, done
    waits at the gate               ◀──       says there where its results lie (gpu_arguments.py)
    stops it, and enqueues on a stream of its own:
        hold, arguments to the call, a cold cache, let the worker's device go, wait for `done`, take results
    lets its own stream go          ──▶       the device works, and no process does
    sees that its stream has ended
    lets it through the gate, waits for an answer

Events on the judge's own stream, where it lets the worker's device go and where that is done, are the window
of the call. Streams wait for a value in memory, so nobody's host lies in it, nor do copies: windows of equal
code differ by 0.3 to 2.4 us, where those that hold a request and an answer differ by 50 to 100
(docs/record). Two processes share a device by turns, so while the judge's stream has work the worker's
has not: nobody computes with arguments that have come while the cache is made cold, and who says early that
it is done has the judge come to it no sooner.

Of a group of ranks all begin at once, when the last GPU's arguments and cache are ready: no code of theirs
has to bring them together.

A call that waits for the device never comes to the gate: the judge lets the device go all the same once its
patience ends, and the sample says that it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from fastkernels.measure.cold import l2_flush
from fastkernels.measure.cuda import Driver
from fastkernels.runner.transfer.shared_memory import Arena, Attached, Ticket, Want

# Of a call whose launches do not all come before the device works.
PATIENCE_S = 0.05
_YES = 1
_GO, _DONE = "go", "done"
_LOOKS = 100  # at the word between two at the clock


class Hold:
    """The judge's end, for one worker, or a group with rank r on GPU r."""

    def __init__(self, ranks: int = 1) -> None:
        self._driver = Driver()
        self._ends = [_End(rank) for rank in range(ranks)]
        # The judge's own, which no worker sees: of each rank the host writes one, and its device another.
        self._pinned = torch.zeros(2 * ranks, dtype=torch.int32, pin_memory=True)
        numbers = self._pinned.numpy()
        self._begins, self._ended = numbers[:ranks], numbers[ranks:]

    @property
    def tickets(self) -> list[Ticket]:
        """Of each rank."""
        return [end.words.ticket for end in self._ends]

    def shut(self) -> None:
        """From now on the devices wait, if the workers have them wait."""
        self._begins[:] = self._ended[:] = 0
        for end in self._ends:
            with end.here():
                end.words.poison()

    def arm(self, bring: Callable[[int], None], take: Callable[[int], None], late: int | None = None) -> None:
        """Enqueue what happens once `open` is called: `bring` and `take` enqueue a rank's copies on the
        current stream. Of a group all begin at once, but a rank that is `late`."""
        ready = []
        for rank, end in enumerate(self._ends):
            with end.here(), torch.cuda.stream(end.stream):
                torch.cuda.synchronize()
                self._driver.wait_for(self._word(rank), _YES, end.stream.cuda_stream)
                bring(rank)
                end.cool()
                if rank != late:
                    ready.append(end.stream.record_event())
        for rank, end in enumerate(self._ends):
            with end.here(), torch.cuda.stream(end.stream):
                stream = end.stream.cuda_stream
                for event in ready if rank != late and len(ready) > 1 else ():
                    end.stream.wait_event(event)
                end.let_go.record()
                self._driver.tell(end.address(_GO), _YES, stream)
                self._driver.wait_for(end.address(_DONE), _YES, stream)
                end.ended.record()
                take(rank)
                self._driver.tell(self._word(len(self._ends) + rank), _YES, stream)

    def open(self, late: int | None = None) -> None:
        """Let all go but a rank that is `late`, which waits for `let_go`."""
        for rank in range(len(self._ends)):
            if rank != late:
                self.let_go(rank)

    def let_go(self, rank: int) -> None:
        self._begins[rank] = _YES

    def passed(self, within_s: float) -> bool:
        """Whether all results are taken within so long."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for _ in range(_LOOKS):
                if all(word == _YES for word in self._ended):
                    return True
        return False

    def device_ns(self) -> int:
        """From when a worker's device was let go until it was done, on the GPU that took longest. Of what has
        passed."""
        return round(max(end.let_go.elapsed_time(end.ended) for end in self._ends) * 1e6)

    def release(self) -> None:
        """Nothing waits any more, whatever became of the worker since `shut`."""
        if all(word == _YES for word in self._ended):
            return
        self._begins[:] = _YES
        for end in self._ends:
            with end.here():
                for name in (_GO, _DONE):
                    self._driver.tell(end.address(name), _YES, end.other.cuda_stream)
                end.other.synchronize()
        for end in self._ends:
            end.stream.synchronize()

    def close(self) -> None:
        for end in self._ends:
            with end.here():
                end.words.close()

    def _word(self, index: int) -> int:
        return self._pinned.data_ptr() + index * self._pinned.element_size()


class _End:
    """One GPU's part: words that its worker sees, and streams of the judge's."""

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        with self.here():
            self.words = Arena.create([Want(n, (), torch.int32) for n in (_GO, _DONE)], "cuda", writable=True)
            self.stream, self.other = torch.cuda.Stream(), torch.cuda.Stream()
            self.let_go, self.ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.cool = l2_flush(gpu)

    def here(self) -> AbstractContextManager:
        return torch.cuda.device(self._gpu)

    def address(self, name: str) -> int:
        return self.words.tensors[name].data_ptr()


class Held:
    """A worker's end. `stream`: of all that is enqueued between `begin` and `end`."""

    def __init__(self, words: Attached, driver: Driver, stream: int) -> None:
        self._stream = stream
        self._wait_for, self._tell = driver.wait_for, driver.tell
        self._go, self._done = words.address(_GO), words.address(_DONE)

    def begin(self) -> None:
        """The device does nothing that is enqueued from now on before the judge lets it."""
        self._wait_for(self._go, _YES, self._stream)

    def end(self) -> None:
        """Once the device has done it, it says so."""
        self._tell(self._done, _YES, self._stream)
