"""What one timed iteration is. A duration without its contract is no result, and two contracts never mix.

    host     wall clock round the call, to the end of the device's work. CPU: the primary contract.
    eager    device time of one eager call; its launches are enqueued while the device is busy with
             something else, so the gaps between them do not count.
    graph    device time of one replay of the call captured in a CUDA graph: how production decodes. CUDA:
             primary.

The order of one iteration (what the judge's loop asks for; see `Contract.run`):

    host            stage | clock, call, clock, keep
    eager, graph    spin, stage, flush L2, event, call or replay, event, keep | wait

`stage` copies the inputs in, `keep` copies the results out; both enqueue raw copies on the timed stream. On
CUDA the inputs arrive behind the spin, so work that a call smuggles to another stream finds the inputs of
the call before, and `keep` follows the second event at once, so it does not wait for such work either.

Two events with nothing between them do not read zero (1.3 us on an H200). That is measured in every worker
before a candidate is imported (`overhead_ns`), printed with the report, and the judge takes it off every
device duration of both sides: with it, a kernel of 2 us would seem to take 3.3, and a win of 20 % would seem
to be 13.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from fastkernels.measure.cold import L2Flush
from fastkernels.measure.cuda import Driver

WARM_UPS = 3  # calls before a capture: lazy initialisation and autotuning must not be captured
# A spin must outlast the host's time to enqueue stage, flush and call. It doubles where it did not.
FIRST_SPIN_CYCLES = 200_000  # about 0.1 ms at 1.8 GHz
MAX_SPIN_CYCLES = 80_000_000  # about 40 ms: a call that is still not hidden waits for the device itself

Call = Callable[[], Any]


class Timing(NamedTuple):
    """`hidden`: whether all launches were enqueued before the device reached the first event (always for
    host)."""

    ns: int
    hidden: bool


class Contract(Protocol):
    """Made in the worker before the candidate is imported: it holds its clock from then on."""

    name: str

    def prepare(self, stage: Callable[[], None]) -> None:
        """Before the judge's clock starts."""
        ...

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> Timing:
        """One timed iteration."""
        ...


class Host:
    """`idle` waits for the device (CUDA) inside the interval; None on the CPU."""

    name = "host"

    def __init__(
        self, idle: Callable[[], None] | None = None, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._idle, self._clock = idle, clock
        self._gc_off, self._gc_on = gc.disable, gc.enable

    def prepare(self, stage: Callable[[], None]) -> None:
        stage()
        if self._idle:
            self._idle()

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> Timing:
        clock, idle = self._clock, self._idle
        self._gc_off()
        try:
            begin = clock()
            result = call()
            if idle:
                idle()
            end = clock()
        finally:
            self._gc_on()
        keep(result)
        return Timing(end - begin, True)


class Device(Protocol):
    """What the CUDA contracts need of a device; everything is enqueued on one stream."""

    def spin(self, cycles: int) -> None: ...
    def flush(self) -> None: ...
    def start(self) -> None: ...
    def end(self) -> None: ...
    def started(self) -> bool: ...
    def wait(self) -> None: ...
    def elapsed_ns(self) -> int: ...
    def capture(self, call: Call) -> tuple[Call, Any]: ...


class Eager:
    name = "eager"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._cycles = FIRST_SPIN_CYCLES
        self._gc_off, self._gc_on = gc.disable, gc.enable

    def prepare(self, stage: Callable[[], None]) -> None:
        """Everything happens behind the spin."""

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> Timing:
        device = self._device
        self._gc_off()
        try:
            device.spin(self._cycles)
            stage()
            device.flush()
            device.start()
            result = call()
            device.end()
            hidden = not device.started()
        finally:
            self._gc_on()
        keep(result)
        device.wait()
        if not hidden:
            self._cycles = min(2 * self._cycles, MAX_SPIN_CYCLES)
        # A call that waits for the device can never be hidden; its gaps are its own and count.
        return Timing(device.elapsed_ns(), hidden or self._cycles == MAX_SPIN_CYCLES)


class Graph(Eager):
    """Replays what `capture` recorded; `poison(result)` spoils the static results before each replay."""

    name = "graph"

    def __init__(self, device: Device, poison: Callable[[Any], None]) -> None:
        super().__init__(device)
        self._poison = poison
        self._replay: Call | None = None
        self._result: Any = None

    def capture(self, call: Call) -> None:
        """Record the call. Raises what the call or CUDA raises where it cannot be captured."""
        self._replay, self._result = self._device.capture(call)

    def release(self) -> None:
        """Forget the recording and the memory that it holds."""
        self._replay = self._result = None

    def prepare(self, stage: Callable[[], None]) -> None:
        self._poison(self._result)

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> Timing:
        assert self._replay is not None, "capture() comes before run()"
        replay, result = self._replay, self._result

        def replayed() -> Any:
            replay()
            return result

        return super().run(stage, replayed, keep)


class CudaDevice:
    """The real device: the driver's events and a spin kernel on torch's default stream.

    The default stream is the one that a library without a stream argument uses, so its work is timed too.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stream = torch.cuda.current_stream()
        self.stream = self._stream.cuda_stream
        self._capture_stream = torch.cuda.Stream()
        self.flush = L2Flush(driver, self._capture_stream)
        self._start, self._end = driver.event(), driver.event()
        self._sleep = torch.cuda._sleep
        self._capturing, self._graph_type = torch.cuda.graph, torch.cuda.CUDAGraph
        self._replay = torch._C._CUDAGraph.replay

    def spin(self, cycles: int) -> None:
        self._sleep(cycles)

    def start(self) -> None:
        self._driver.record(self._start, self.stream)

    def end(self) -> None:
        self._driver.record(self._end, self.stream)

    def started(self) -> bool:
        return self._driver.passed(self._start)

    def wait(self) -> None:
        self._driver.wait(self.stream)

    def elapsed_ns(self) -> int:
        return self._driver.elapsed_ns(self._start, self._end)

    def capture(self, call: Call) -> tuple[Call, Any]:
        self._capture_stream.wait_stream(self._stream)
        with torch.cuda.stream(self._capture_stream):
            for _ in range(WARM_UPS):
                call()
        self._stream.wait_stream(self._capture_stream)
        torch.cuda.synchronize()
        graph = self._graph_type()
        with self._capturing(graph, stream=self._capture_stream):
            result = call()
        torch.cuda.synchronize()
        return lambda: self._replay(graph), result

    def overhead_ns(self, repeats: int = 20) -> int:
        """Median reading of two events with nothing between them: what the clock itself costs here."""
        readings = []
        for _ in range(repeats):
            self.spin(FIRST_SPIN_CYCLES)
            self.start()
            self.end()
            self.wait()
            readings.append(self.elapsed_ns())
        return sorted(readings)[repeats // 2]
