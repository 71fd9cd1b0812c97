"""One worker in a trial, as the judge sees it: a process, its boxes, and one iteration at a time."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from fastkernels.measure.attribution import Launched
from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.clocks import SmClock
from fastkernels.measure.contracts import MAX_SPIN_CYCLES
from fastkernels.records import Case, TensorSpec
from fastkernels.runner import gate
from fastkernels.runner.blame import Phase, Trouble, lost_context
from fastkernels.runner.hold import PATIENCE_S, Hold
from fastkernels.runner.kernel_answers import (
    Again,
    Built,
    Captured,
    Compiled,
    First,
    Inspected,
    Launches,
    Prepared,
    Timed,
)
from fastkernels.runner.late import Late, led
from fastkernels.runner.memory import NoMemory
from fastkernels.runner.pool import Worker, WorkerDied, WorkerProblem
from fastkernels.runner.reading import Reading, of_links
from fastkernels.runner.results import Result
from fastkernels.runner.shared import Arena, Want
from fastkernels.runner.transport import Boxes, Direct, Places, Transport, Way
from fastkernels.runner.window import Opened, Window

# A candidate may return another stride; where a result is huge, its memory may only be as large as the
# baseline's.
ROOM_FOR_STRIDES_BYTES = 1 << 28
_USUAL_S = 2.0  # of a held device's work
# Calls in a row that do not come to the gate before the device goes on: the first may load code, which waits.
_MOST_LATE = 3


@dataclass(frozen=True)
class Timeouts:
    """Seconds that each phase may take. `first` holds everything that a kernel compiles on its first call."""

    open: float
    build: float
    first: float
    call: float

    @classmethod
    def of(cls, device: str, override: float | None) -> Timeouts:
        if override is not None:
            return cls(override, override, override, override)
        # FlashInfer and FLA compile and tune for up to 90 s on their first call (docs: measured facts).
        return cls(open=120, build=120, first=600 if device == "cuda" else 120, call=60)


class Party:
    """Use `load` for each case, then `iterate`. Problems come as Trouble with their phase."""

    def __init__(
        self,
        worker: Worker,
        device: str,
        timeouts: Timeouts,
        clock: SmClock,
        overhead_ns: int,
        ranks: int = 1,
    ) -> None:
        """`overhead_ns`: what the device's clock reads for nothing, taken off every device duration. `ranks`:
        of which the worker is the first."""
        self.worker, self._device, self._timeouts, self._clock = worker, device, timeouts, clock
        self._overhead_ns, self._ranks = overhead_ns, ranks
        self._inbox: Arena | None = None
        self._transport: Transport | None = None
        self._gate: socket.socket | None = None
        self._hold: Hold | None = None
        self._late = 0  # calls in a row whose launches waited for the device that is held
        self._captured: list[dict[str, Result]] = []
        self.standing = worker.standing()
        self.prepares = False
        self.kernels: dict[str, str] = {}

    def load(
        self,
        case: Case,
        layers: Sequence[str],
        implementations: dict[str, str],
        inbox: Arena,
        again: bool = False,
        way: Way = "asked",
    ) -> dict[str, Result]:
        """Import, build, attach to the inbox (which holds the first inputs) and call once; describes the
        results. `again`: import nothing anew, for another case with the same layers. `way`: of its calls from
        then on (transport.py)."""
        self.unload()
        self.worker.restless = self.worker.meddled = None
        limits = self._timeouts
        self._call(
            "open", limits.open, layers=list(layers), case=case, implementations=implementations, again=again
        )
        self.prepares = self._answer("build", Built, limits.build).prepares
        self._inbox = inbox
        if way == "asked":
            self._call("attach", limits.build, inbox.descriptors, ticket=inbox.ticket)
        else:
            self._gate, theirs = gate.pair()
            self._hold = Hold() if way == "held" else None
            knows = {"direct": True} if self._hold is None else {"words": self._hold.ticket}
            with theirs:
                descriptors = *inbox.descriptors, theirs.fileno()
                self._call("attach", limits.build, descriptors, ticket=inbox.ticket, **knows)
        first = self._answer("first", First, limits.first)
        self.kernels = first.kernels
        return first.outputs

    @property
    def way(self) -> Way:
        """Of the calls of the case that is loaded."""
        return "asked" if self._gate is None else "direct" if self._hold is None else "held"

    @property
    def best_way(self) -> Way:
        """That the worker's calls can go."""
        if self.worker.memory is not None:
            return "direct"
        return "held" if self._device == "cuda" and self._ranks == 1 else "asked"

    def give_boxes(
        self, inputs: Mapping[str, TensorSpec], results: dict[str, Result], plan: ChainPlan
    ) -> None:
        """Room for results as the baseline describes them, and for the inputs as they are after a call."""
        assert self._inbox is not None
        wanted = [
            Want(name, r.description.shape, getattr(torch, r.description.dtype), _room(r), plan.links)
            for name, r in results.items()
        ]
        if self.way == "direct":
            assert self.worker.memory is not None
            self._transport = Direct(self.worker.memory, wanted, inputs)
            return
        self._transport = boxes = Boxes.create(self._device, self._inbox, wanted, inputs, plan)
        if self._hold is not None:
            boxes.rehearse()
        self._call("boxes", self._timeouts.build, boxes.descriptors, **boxes.tickets)

    def capture(self, plan: ChainPlan) -> Captured:
        """Capture a chain of new links, at other addresses than those before."""
        answer = self._answer("capture", Captured, self._timeouts.first, plan=plan)
        if answer.captured:
            if len(answer.outputs) != plan.links:
                raise self._garbled("capture", f"{len(answer.outputs)} of {plan.links} links are described")
            self.kernels, self._captured = answer.kernels, answer.outputs
        self.worker.pause()
        return answer

    def iterate(
        self,
        inputs: Mapping[str, Tensor],
        contract: str,
        fresh: bool,
        parameters: bool,
        echo: Sequence[str],
        echo_results: bool = False,
        spin_cycles: int = 0,
        link: int | None = None,
        late: Late | None = None,
    ) -> Reading:
        """One iteration, of a captured chain or of one `link` of it alone, on these arguments, [n, *shape].
        The worker sleeps afterwards. With a rank that is `late` its times mean nothing.

        What is asked for once the clock has stopped must come from the worker's own memory: whoever left
        copies beside the call out, to compute in their time, has nothing to show.
        """
        transport = self._transport
        assert transport is not None
        transport.clear()
        with led(late) as (descriptors, lead):
            prepared = self._answer(
                "prepare",
                Prepared,
                self._timeouts.first,
                descriptors,
                contract=contract,
                fresh=fresh,
                parameters=parameters,
                spin_cycles=spin_cycles,
                link=link,
                **({} if late is None else {"late": late.rank}),
            )
            if isinstance(transport, Direct):
                timed, window, kept = self._through_gate(transport, prepared.places, inputs, echo)
            elif self._hold is not None and contract != "host":
                assert isinstance(transport, Boxes)
                timed, window, kept = self._held(self._hold, transport, inputs, contract)
            else:
                assert isinstance(transport, Boxes)
                timed, window, kept = self._asked(transport, inputs, lead)
        clock_mhz = self._clock.sample()
        if echo_results:
            transport.ask_again()
        inspected = self._answer(
            "inspect", Inspected, self._timeouts.call, echo=list(echo), echo_results=echo_results
        )
        self.worker.pause()
        echoed = self._reached("inspect", lambda: transport.echoed(inspected.places, echo))
        lasting = not echo_results or self._reached("inspect", lambda: transport.lasts(kept))
        overhead_ns = 0 if contract == "host" else self._overhead_ns
        results = self._captured if contract == "graph" else inspected.outputs
        if contract != "graph" and len(results) != self._ranks:
            raise self._garbled("inspect", f"{len(results)} of {self._ranks} ranks are described")
        results = results if link is None else [results[link]]
        links = len(results)
        calls = links if contract == "graph" else 1  # ranks make one call together
        longest = spin_cycles == MAX_SPIN_CYCLES if self._hold is None else self._late > _MOST_LATE
        ran = slice(links) if link is None else slice(link, link + 1)
        return Reading(
            ns=max(timed.ns - overhead_ns, 1) / calls,
            claimed_ns=timed.ns,
            window_ns=window.ns,
            hidden=timed.hidden or longest,
            waits=contract == "eager" and longest and not timed.hidden,
            clock_mhz=clock_mhz,
            threads=inspected.threads,
            cpu_ns=window.cpu_ns,
            described=tuple({n: r.description for n, r in described.items()} for described in results),
            outputs=self._lay(kept, results[0], ran),
            echo={name: of_links(value, ran) for name, value in echoed.items()},
            flags=inspected.flags,
            made=window.made,
            lasting=lasting,
        )

    def again(self, reading: Reading) -> dict[str, Tensor]:
        """The results of the call before the last one, as they lie in memory now; `reading` is that
        call's. Asked again, of the same call, however many there were since."""
        transport = self._transport
        assert transport is not None
        transport.ask_again()
        answer = self._answer("again", Again, self._timeouts.call)
        self.worker.pause()
        box = self._reached("again", lambda: transport.again(answer.places))
        return {
            name: box.view(name, tensor.shape[1:], tensor.stride()[1:])[: len(tensor)]
            for name, tensor in reading.outputs.items()
            if name.startswith("out.")
        }

    def compiled(self, again: bool) -> Compiled:
        """What torch.compile says of the case's module; `again`: traces of the cases before may serve it."""
        return self._answer("compiled", Compiled, self._timeouts.first, again=again)

    def launched(self) -> list[Launched]:
        """The kernels of one eager call, as the worker says."""
        answer = self._answer("launched", Launches, self._timeouts.first)
        return [Launched(kernel.name, kernel.ns) for kernel in answer.kernels]

    def unload(self) -> None:
        """Forget the case, and free its boxes."""
        if self.worker.busy:
            self.worker.close()  # interrupted in a call: nobody knows when it would answer
        elif self.worker.alive and self._inbox is not None:
            with contextlib.suppress(
                WorkerProblem
            ):  # a worker that cannot even forget is replaced by its owner
                self.worker.call("close", self._timeouts.build)
        if self._transport is not None:
            self._transport.close()
        if self._gate is not None:
            self._gate.close()
        if self._hold is not None:
            self._hold.close()
        self._inbox = self._transport = self._gate = self._hold = None
        self._late = 0
        self._captured = []

    # Every way what is not there when the process stands still is none. A thread inside a system call
    # writes on until that ends: such results are worth as much time as they took.

    def _through_gate(
        self, transport: Direct, places: Places, inputs: Mapping[str, Tensor], echo: Sequence[str]
    ) -> tuple[Timed, Window, Arena]:
        """The call, between two moments when the process stands still at its gate."""
        worker, channel, timeout_s = self.worker, self._gate, self._timeouts.call
        assert channel is not None
        with self._telling("go"):
            worker.ask("go")
            worker.wait_at(channel, timeout_s)
        worker.pause()
        self._reached("prepare", lambda: transport.bring(places, inputs))
        gate.let_through(channel)
        window = Opened(worker.pid)
        begin_ns = worker.resume()
        with self._telling("go"):
            worker.wait_at(channel, timeout_s)
        window = window.closed(begin_ns, worker.pause())
        try:
            reaches = gate.left(gate.said(channel))
        except ValueError as error:
            raise self._garbled("go", str(error)) from error
        kept = self._reached("go", lambda: transport.take(reaches, echo))
        gate.let_through(channel)
        with self._telling("go"):
            return self._read("go", Timed, worker.answer(timeout_s)), window, kept

    def _held(
        self, hold: Hold, transport: Boxes, inputs: Mapping[str, Tensor], contract: str
    ) -> tuple[Timed, Window, Arena]:
        """The call, between two words to the device, while the process stands still at its gate. An eager
        one may wait for the device before it comes there: such a call is not hidden."""
        worker, channel, timeout_s = self.worker, self._gate, self._timeouts.call
        assert channel is not None
        kept = transport.room()
        hold.shut()
        try:
            with self._telling("go"):
                worker.ask("go")
                is_there = contract != "eager" or worker.comes_to(channel, PATIENCE_S)
                if is_there:
                    worker.wait_at(channel, timeout_s)
                    worker.pause()
            hold.arm(lambda: transport.enqueue_arguments(inputs), lambda: transport.enqueue_results(kept))
            window = Opened(worker.pid)
            begin_ns = hold.open()
            still_ns = hold.passed(_USUAL_S)
            with self._telling("go"):
                if not is_there:
                    worker.wait_at(channel, timeout_s)
                gate.let_through(channel)
                timed = self._read("go", Timed, worker.answer(timeout_s))
            # A device that has failed, or goes on for long, is waited for by its own process.
            still_ns = still_ns or hold.passed(_USUAL_S)
            if still_ns is None:
                raise self._garbled("go", "its device did not say that the call has ended")
        finally:
            hold.release()
        transport.withdraw()
        self._late = 0 if is_there else self._late + 1
        timed = timed.model_copy(update={"hidden": timed.hidden and is_there})
        return timed, window.closed(begin_ns, still_ns), kept

    def _asked(
        self, transport: Boxes, inputs: Mapping[str, Tensor], lead: Callable[[], None]
    ) -> tuple[Timed, Window, Arena]:
        """The call, from before its inputs come until the process stands still after its answer."""
        window, begin_ns = Opened(self.worker.pid), time.perf_counter_ns()
        transport.deliver(inputs)
        lead()
        timed = self._answer("go", Timed, self._timeouts.call)
        window = window.closed(begin_ns, self.worker.pause())
        return timed, window, transport.take()

    def _reached(self, phase: Phase, move: Callable[[], Any]) -> Any:
        """What `move` returns, where the worker's memory is as it told."""
        try:
            return move()
        except NoMemory as error:
            raise self._garbled(phase, str(error)) from error

    def _lay(self, box: Arena, results: dict[str, Result], links: slice) -> dict[str, Tensor]:
        """Tensors over a copy of the outbox with the shapes and strides that the worker says of the first
        link (the referee holds the others against it). Those that do not fit stay out: their description
        already differs from the baseline's."""
        laid = {}
        for name, result in results.items():
            slot, description = box.ticket.slots.get(name), result.description
            if slot is None or description.dtype != slot.dtype or description.shape != slot.shape:
                continue
            with contextlib.suppress(ValueError):
                laid[name] = box.view(name, description.shape, description.stride)[links]
        return laid

    def _call(
        self, phase: Phase, timeout_s: float, descriptors: Sequence[int] = (), **arguments: Any
    ) -> dict:
        with self._telling(phase):
            return self.worker.call(phase, timeout_s, descriptors, **arguments)

    @contextlib.contextmanager
    def _telling(self, phase: Phase) -> Iterator[None]:
        """Problems of the worker in the body, as Trouble with their phase."""
        try:
            yield
        except WorkerProblem as problem:
            # A rank that failed has left its group.
            if lost_context(problem) or self._ranks > 1:
                self.worker.close()
            raise Trouble(phase, problem) from problem

    def _answer(
        self, phase: Phase, kind: type, timeout_s: float, descriptors: Sequence[int] = (), **arguments: Any
    ):
        return self._read(phase, kind, self._call(phase, timeout_s, descriptors, **arguments))

    def _read(self, phase: Phase, kind: type, value: dict[str, Any]):
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            raise self._garbled(phase, str(error)) from error

    def _garbled(self, phase: Phase, why: str) -> Trouble:
        """Whoever answers so is not asked again."""
        printed = self.worker.scratch.printed()
        self.worker.close()
        message = f"{self.worker.name}: garbled answer to '{phase}': {why}"
        return Trouble(phase, WorkerDied("CRASHED", message, printed))


def _room(result: Result) -> int:
    return result.span_bytes * (2 if result.span_bytes <= ROOM_FOR_STRIDES_BYTES else 1)
