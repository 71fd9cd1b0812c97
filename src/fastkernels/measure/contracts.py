"""What one timed iteration is. A duration without its contract is no result, and two contracts never mix.

    host     wall clock round the call, to the end of the device's work. CPU: the primary contract.
    eager    device time of one eager call; its launches are enqueued while the device stands still, so
             the gaps between them do not count.
    collective  a call on a group of ranks: `eager` on CUDA and `host` on a CPU, from a start that all
             ranks wait for, on the rank that takes longest.
    graph    device time of a chain of captured calls in one CUDA graph, divided by their number: how
             production decodes, layer after layer. Every call has its own module, inputs and results, so
             all find cold caches; each ends before the next begins (measure/chain.py). CUDA: primary.

The order of one iteration (what the judge's loop asks for; see `Contract.run`):

    host         stage, clock, call, clock, keep
    on a device  hold, event, call or chain, event, done, keep | wait

`stage` copies the inputs in, and `keep` the results out: raw copies. The inputs come to the worker once all
of that is prepared, not before: a candidate's process could compute with them as soon as it can see them, so
from then on the judge's own clock runs.

A device waits for the judge's word (`Hold`; runner/transfer/gpu_hold.py), so that launches are hidden, those
of all ranks begin together, and the judge's window is the device's time. The judge brings the inputs to where
the call works on them, makes the L2 cache cold and takes the results itself: nothing is staged, and `keep`
says where results lie. An eager call that waits for the device in itself cannot be hidden: the host's work is
in its time, which is no device time then, and no win or loss is claimed by it.

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
from typing import Any, Protocol

import torch

from fastkernels.kernels import counters
from fastkernels.measure.cuda import Driver

WARM_UPS = 3  # calls before a capture: lazy initialisation and autotuning must not be captured
_SPIN_CYCLES = 200_000  # about 0.1 ms at 1.8 GHz, while two events are enqueued

Call = Callable[[], Any]


class Contract(Protocol):
    """Made in the worker before the candidate is imported: it holds its clock from then on."""

    name: str

    def prepare(self) -> None:
        """Before the judge's clock starts and the inputs come."""
        ...

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> int:
        """One timed iteration: its ns."""
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

    def prepare(self) -> None:
        """Nothing: the clock is there."""

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> int:
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
        if idle:  # a device that others use, too, may come to the copies late
            idle()
        return end - begin


class Chain(Protocol):
    """Captured calls; `results`: what each returned, rewritten by every launch.

    `launch` runs some of them one after another in one graph; `ready` says before which it will be.
    """

    results: list[Any]

    def ready(self, *orders: tuple[int, ...]) -> None: ...
    def launch(self, order: tuple[int, ...]) -> None: ...
    def close(self) -> None: ...


class Device(Protocol):
    """What the CUDA contracts need of a device; everything is enqueued on one stream."""

    def stir(self) -> None: ...
    def start(self) -> None: ...
    def end(self) -> None: ...
    def wait(self) -> None: ...
    def elapsed_ns(self) -> int: ...
    def capture(self, calls: Sequence[Call]) -> Chain: ...


class Hold(Protocol):
    """What the device does between `begin` and `end`, it does between two words of the judge's."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class Eager:
    """`hold`: the judge's, set for each case."""

    name = "eager"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gc_off, self._gc_on = gc.disable, gc.enable
        self.hold: Hold | None = None

    def prepare(self) -> None:
        """Everything happens behind the hold."""

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> int:
        device, hold = self._device, self.hold
        assert hold is not None, "the judge holds the device"
        self._gc_off()
        try:
            self._wake()
            hold.begin()
            device.stir()
            device.start()
            result = call()
            device.end()
        finally:
            self._gc_on()
        hold.end()
        keep(result)
        device.wait()
        return device.elapsed_ns()

    def _wake(self) -> None:
        """What is enqueued before the inputs come."""


class Graph(Eager):
    """Launches what `capture` captured, in the order that `choose` says. `keep` gets the results in this
    order.

    The order is another in every iteration: a call that knew which comes next could fetch its arguments
    while it runs itself, which are there in a chain and in no model (`cuda_reads_ahead`: 1.19 and 1.17).
    """

    name = "graph"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._chain: Chain | None = None
        self._order: tuple[int, ...] = ()

    def capture(self, calls: Sequence[Call]) -> list[Any]:
        """Capture the calls, which run in this order until another is chosen; their results. Raises what a
        call or CUDA raises where it cannot be captured."""
        self.release()
        self._chain = self._device.capture(calls)
        self._order = tuple(range(len(self._chain.results)))
        return self._chain.results

    def release(self) -> None:
        """Forget what was captured, and the memory that it holds."""
        if self._chain is not None:
            self._chain.close()
        self._chain = None

    def choose(self, order: Sequence[int]) -> None:
        """Which links the next iterations launch, one after another."""
        self._order = tuple(order)

    def prepare(self) -> None:
        assert self._chain is not None, "capture() comes before prepare()"
        self._chain.ready(self._order, *self._neighbours)

    def run(self, stage: Callable[[], None], call: Call, keep: Callable[[Any], None]) -> int:
        assert self._chain is not None, "capture() comes before run()"
        chain, order = self._chain, self._order
        results = [chain.results[link] for link in order]

        def launched() -> list[Any]:
            chain.launch(order)
            return results

        return super().run(stage, launched, keep)

    @property
    def _neighbours(self) -> list[tuple[int, ...]]:
        """Of a link that runs alone: another one, where there is one."""
        assert self._chain is not None
        links = len(self._chain.results)
        return [((self._order[0] + 1) % links,)] if len(self._order) == 1 < links else []

    def _wake(self) -> None:
        """A link alone has its code to fetch, of every kernel in it, as no link behind others has. So another
        runs before it, on what the call before has left, when the inputs of this one are not there yet."""
        assert self._chain is not None
        for neighbour in self._neighbours:
            self._chain.launch(neighbour)


class CudaDevice:
    """The real device: the driver's events on torch's default stream.

    The default stream is the one that a library without a stream argument uses, so its work is timed too.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stream = torch.cuda.current_stream()
        self.stream = self._stream.cuda_stream
        self._capture_stream = torch.cuda.Stream()
        self._start, self._end = driver.event(), driver.event()
        self._sleep = torch.cuda._sleep
        self._graph_type, graph = torch.cuda.CUDAGraph, torch._C._CUDAGraph
        self._begin, self._finish, self._raw = graph.capture_begin, graph.capture_end, graph.raw_cuda_graph

    def stir(self) -> None:
        """A kernel that does nothing. The first one that a device runs for a process after another's takes
        0 to 0.8 us longer, as the process has it: calls of 5 us read 13 % apart in five processes, and 3
        behind another kernel (one H100)."""
        self._sleep(1)

    def start(self) -> None:
        self._driver.record(self._start, self.stream)

    def end(self) -> None:
        self._driver.record(self._end, self.stream)

    def wait(self) -> None:
        self._driver.wait(self.stream)

    def elapsed_ns(self) -> int:
        return self._driver.elapsed_ns(self._start, self._end)

    def capture(self, calls: Sequence[Call]) -> CudaChain:
        """Each call in a graph of its own: what it starts on other streams must have ended with it. And with
        memory of its own: in a pool that graphs share, results of one lie where an earlier one has worked,
        and calls may run in any order."""
        self._capture_stream.wait_stream(self._stream)
        with torch.cuda.stream(self._capture_stream):
            for call in calls:
                for _ in range(WARM_UPS):
                    call()
        counters.prepare()
        torch.cuda.synchronize()
        gc.disable()  # memory that is freed while a call is captured would spoil the capture
        try:
            captured = [self._captured(call) for call in calls]
        finally:
            gc.enable()
        graphs, results = [graph for graph, _ in captured], [result for _, result in captured]
        torch.cuda.synchronize()
        return CudaChain(self._driver, self.stream, graphs, [self._raw(graph) for graph in graphs], results)

    def _captured(self, call: Call) -> tuple[Any, Any]:
        graph = self._graph_type(keep_graph=True)
        with torch.cuda.stream(self._capture_stream):
            self._begin(graph, pool=torch.cuda.graph_pool_handle(), capture_error_mode="global")
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
            self._sleep(_SPIN_CYCLES)
            self.start()
            self.end()
            self.wait()
            readings.append(self.elapsed_ns())
        return sorted(readings)[repeats // 2]


class CudaChain:
    """Graphs of single calls, in executable graphs of some of them. `graphs` hold the memory that their
    kernels use. Raises what CUDA raises where all of them cannot be in one."""

    def __init__(
        self, driver: Driver, stream: int, graphs: list[Any], handles: Sequence[int], results: list[Any]
    ) -> None:
        self._driver, self._stream, self._graphs, self._handles = driver, stream, graphs, handles
        self.results = results
        self._executables: dict[tuple[int, ...], int] = {}
        self.ready(tuple(range(len(handles))))

    def ready(self, *orders: tuple[int, ...]) -> None:
        """These, and no others any more."""
        for order in self._executables.keys() - set(orders):
            self._driver.drop(self._executables.pop(order))
        for order in orders:
            if order not in self._executables:
                graphs = [self._handles[link] for link in order]
                self._executables[order] = self._driver.chain(graphs, self._stream)

    def launch(self, order: tuple[int, ...]) -> None:
        self._driver.launch(self._executables[order], self._stream)

    def close(self) -> None:
        for executable in self._executables.values():
            self._driver.drop(executable)
        self._executables, self._graphs, self.results = {}, [], []
