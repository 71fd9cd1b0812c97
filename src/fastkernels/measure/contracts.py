"""What one timed iteration is. A duration without its contract is no result, and two contracts never mix.

    host     wall clock round the call, to the end of the device's work. CPU: the primary contract.
    eager    device time of one eager call; its launches are enqueued while the device is busy with
             something else, so the gaps between them do not count.
    collective  a call on a group of ranks: `eager` on CUDA and `host` on a CPU, from a start that all
             ranks wait for, on the rank that takes longest.
    graph    device time of a chain of captured calls in one CUDA graph, divided by their number: how
             production decodes, layer after layer. Every call has its own module, inputs and results, so
             all find cold caches; each ends before the next begins (measure/chain.py). CUDA: primary.

The order of one iteration (what the judge's loop asks for; see `Contract.run`):

    host            stage, clock, call, clock, keep
    eager, graph    hold, stage, flush L2, event, call or chain, event, keep, done | wait
    of a group      spin, stage, flush L2, event, call, event, keep | wait

`stage` copies the inputs in, `keep` copies the results out; both enqueue raw copies on the timed stream. The
inputs come to the worker once all of that is enqueued, not before: a candidate's process could compute with
them as soon as it can see them, so from then on the judge's own clock runs, and `keep` follows the second
event at once, so it does not wait for work on other streams.

The device waits for the judge's word (`Hold`; runner/hold.py), so that launches are hidden and the judge's
window is the device's time. In a group it spins instead, for as long as the judge says. The spin must outlast
the host's time to enqueue what follows; where it did not, the sample is dropped and the judge doubles it
(`longer`). An eager call that neither hides waits for the device, or has the host busy for longer than that:
the host's work is in its time, which is no device time then, and no win or loss is claimed by it.

Two events with nothing between them do not read zero (1.3 us on an H200). That is measured in every worker
before a candidate is imported (`overhead_ns`), printed with the report, and the judge takes it off every
device duration of both sides: with it, one kernel of 2 us would seem to take 3.3, and a win of 20 % would
seem to be 13.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from fastkernels.kernels import counters
from fastkernels.measure.cold import L2Flush
from fastkernels.measure.cuda import Driver
from fastkernels.measure.recorded import Recorded, Repeated, Work

WARM_UPS = 3  # calls before a capture: lazy initialisation and autotuning must not be captured
FIRST_SPIN_CYCLES = 200_000  # about 0.1 ms at 1.8 GHz
MAX_SPIN_CYCLES = 80_000_000  # about 40 ms: an eager call that is still not hidden waits for the device

Call = Callable[[], Any]


class Timing(NamedTuple):
    """`hidden`: whether all launches were enqueued before the device reached the first event (always for
    host, and where the judge holds the device and knows it better). The judge drops what was not, and what
    the longest spin does not hide says that the call waits."""

    ns: int
    hidden: bool


class Contract(Protocol):
    """Made in the worker before the candidate is imported: it holds its clock from then on."""

    name: str

    def prepare(self, spin_cycles: int) -> None:
        """Before the judge's clock starts and the inputs come."""
        ...

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> Timing:
        """One timed iteration."""
        ...


class Host:
    """`idle` waits for the device (CUDA) inside the interval; None on the CPU. `start` returns when all ranks
    of a group are ready: the contract is `collective` then."""

    name = "host"

    def __init__(
        self,
        idle: Callable[[], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        start: Callable[[], None] | None = None,
    ) -> None:
        self._idle, self._clock, self._start = idle, clock, start
        self._gc_off, self._gc_on = gc.disable, gc.enable

    def prepare(self, spin_cycles: int) -> None:
        """Nothing: the clock is there, and no device needs to be hidden."""

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> Timing:
        clock, idle, start = self._clock, self._idle, self._start
        self._gc_off()
        try:
            stage()
            if idle:
                idle()
            if start:
                start()
            begin = clock()
            result = call()
            if idle:
                idle()
            end = clock()
        finally:
            self._gc_on()
        keep(result)
        return Timing(end - begin, True)


class Chain(Protocol):
    """Captured calls in one graph; `results`: what each returned, rewritten by every launch.

    `launch` runs all of them, or one link alone; `ready` says before which it will be.
    """

    results: list[Any]

    def ready(self, link: int | None) -> None: ...
    def launch(self, link: int | None) -> None: ...
    def close(self) -> None: ...


class Device(Protocol):
    """What the CUDA contracts need of a device; everything is enqueued on one stream."""

    def spin(self, cycles: int) -> None: ...
    def flush(self) -> None: ...
    def start(self) -> None: ...
    def end(self) -> None: ...
    def started(self) -> bool: ...
    def wait(self) -> None: ...
    def elapsed_ns(self) -> int: ...
    def capture(self, calls: Sequence[Call]) -> Chain: ...


class Hold(Protocol):
    """What the device does between `begin` and `end`, it does between two words of the judge's."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class Eager:
    """`hold`: set where the judge holds the device; it spins elsewhere.

    Of a rank, `start` returns when all ranks are ready, and `align` enqueues what no device passes before
    all have come to it: spins that begin together end tens of microseconds apart.
    """

    name = "eager"

    def __init__(
        self,
        device: Device,
        start: Callable[[], None] | None = None,
        align: Callable[[], None] | None = None,
    ) -> None:
        self._device, self._start, self._align = device, start, align
        self._cycles = FIRST_SPIN_CYCLES
        self._gc_off, self._gc_on = gc.disable, gc.enable
        self.hold: Hold | None = None

    def prepare(self, spin_cycles: int) -> None:
        """Everything happens behind the hold, or the spin."""
        self._cycles = spin_cycles

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> Timing:
        device, start, align, hold = self._device, self._start, self._align, self.hold
        self._gc_off()
        try:
            if start:
                start()
            if hold:
                hold.begin()
            else:
                device.spin(self._cycles)
            self._wake()
            stage()
            device.flush()
            if align:
                align()
            device.start()
            result = call()
            device.end()
            hidden = hold is not None or not device.started()
        finally:
            self._gc_on()
        keep(result)
        if hold:
            hold.end()
        device.wait()
        return Timing(device.elapsed_ns(), hidden)

    def _wake(self) -> None:
        """What is enqueued before the inputs come."""


class Graph(Eager):
    """Launches what `capture` captured; `poison(result)` spoils every call's results before each launch, with
    raw fills that `record` may record.

    `keep` gets the results of all calls that were launched, in order.
    """

    name = "graph"

    def __init__(
        self,
        device: Device,
        poison: Callable[[Any], None],
        record: Callable[[Work], Recorded] = Repeated,
    ) -> None:
        super().__init__(device)
        self._poison, self._record = poison, record
        self._chain: Chain | None = None
        self._spoiling: Recorded | None = None
        self._link: int | None = None

    def capture(self, calls: Sequence[Call]) -> list[Any]:
        """Capture the calls; their results. Raises what a call or CUDA raises where it cannot be captured."""
        self.release()
        self._chain = chain = self._device.capture(calls)

        def spoil() -> None:
            for result in chain.results:
                self._poison(result)

        self._spoiling = self._record(spoil)
        return chain.results

    def release(self) -> None:
        """Forget what was captured, and the memory that it holds."""
        for held in (self._spoiling, self._chain):
            if held is not None:
                held.close()
        self._chain = self._spoiling = None

    def choose(self, link: int | None) -> None:
        """What the next iterations launch: a link alone, or the whole chain (None)."""
        self._link = link

    def prepare(self, spin_cycles: int) -> None:
        assert self._chain is not None, "capture() comes before prepare()"
        assert self._spoiling is not None
        super().prepare(spin_cycles)
        self._chain.ready(self._link)
        if self._neighbour is not None:
            self._chain.ready(self._neighbour)
        self._spoiling()

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> Timing:
        assert self._chain is not None, "capture() comes before run()"
        chain, link = self._chain, self._link
        results = chain.results if link is None else [chain.results[link]]

        def launched() -> list[Any]:
            chain.launch(link)
            return results

        return super().run(stage, launched, keep)

    @property
    def _neighbour(self) -> int | None:
        """The next link of one that runs alone."""
        assert self._chain is not None
        links = len(self._chain.results)
        return None if self._link is None or links == 1 else (self._link + 1) % links

    def _wake(self) -> None:
        """A link alone has its code to fetch, of every kernel in it, as no link behind others has. So another
        runs before it, on what the call before has left, when the inputs of this one are not there."""
        if self._neighbour is not None:
            assert self._chain is not None
            self._chain.launch(self._neighbour)


def longer(spin_cycles: int) -> int:
    """The next spin after one that was too short."""
    return min(2 * spin_cycles, MAX_SPIN_CYCLES)


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
        self._graph_type, graph = torch.cuda.CUDAGraph, torch._C._CUDAGraph
        self._begin, self._finish, self._raw = graph.capture_begin, graph.capture_end, graph.raw_cuda_graph

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

    def capture(self, calls: Sequence[Call]) -> CudaChain:
        """Each call in a graph of its own: what it starts on other streams must have ended with it."""
        self._capture_stream.wait_stream(self._stream)
        with torch.cuda.stream(self._capture_stream):
            for call in calls:
                for _ in range(WARM_UPS):
                    call()
        counters.prepare()
        torch.cuda.synchronize()
        pool = torch.cuda.graph_pool_handle()
        gc.disable()  # memory that is freed while a call is captured would spoil the capture
        try:
            captured = [self._captured(call, pool) for call in calls]
        finally:
            gc.enable()
        graphs, results = [graph for graph, _ in captured], [result for _, result in captured]
        torch.cuda.synchronize()
        return CudaChain(self._driver, self.stream, graphs, [self._raw(graph) for graph in graphs], results)

    def _captured(self, call: Call, pool: Any) -> tuple[Any, Any]:
        graph = self._graph_type(keep_graph=True)
        with torch.cuda.stream(self._capture_stream):
            self._begin(graph, pool=pool, capture_error_mode="global")
            try:
                result = call()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # what broke the capture says more than its end
                    self._finish(graph)
                raise
            self._finish(graph)
        return graph, result

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


class CudaChain:
    """Graphs of single calls, in one executable graph. `graphs` hold the memory that their kernels use."""

    def __init__(
        self, driver: Driver, stream: int, graphs: list[Any], handles: Sequence[int], results: list[Any]
    ) -> None:
        self._driver, self._stream, self._graphs, self._handles = driver, stream, graphs, handles
        self.results = results
        self._executables: dict[int | None, int] = {None: driver.chain(handles)}

    def ready(self, link: int | None) -> None:
        if link is not None and link not in self._executables:
            self._executables[link] = self._driver.chain([self._handles[link]])

    def launch(self, link: int | None) -> None:
        self._driver.launch(self._executables[link], self._stream)

    def close(self) -> None:
        for executable in self._executables.values():
            self._driver.drop(executable)
        self._executables, self._graphs, self.results = {}, [], []
