"""One worker in a trial, as the judge sees it: a process, its boxes, and one iteration at a time."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fastkernels.loader import views
from fastkernels.measure.attribution import Launched
from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.clocks import SmClock
from fastkernels.records import Case, TensorSpec
from fastkernels.runner.inside.results import Result
from fastkernels.runner.ranks.late_rank import Late
from fastkernels.runner.transfer import hold_gate
from fastkernels.runner.transfer.boxes import Boxes
from fastkernels.runner.transfer.gpu_arguments import GpuArguments
from fastkernels.runner.transfer.gpu_hold import Hold
from fastkernels.runner.transfer.shared_memory import Arena, Want
from fastkernels.runner.worker import call_path
from fastkernels.runner.worker.call_path import Made
from fastkernels.runner.worker.pool import Worker, WorkerProblem
from fastkernels.runner.worker.reading import Reading, of_links
from fastkernels.runner.worker.worker_calls import (
    Built,
    Captured,
    Compiled,
    First,
    Inspected,
    Launches,
    Timeouts,
    WorkerCalls,
)

# A candidate may return another stride; where a result is huge, its memory may only be as large as the
# baseline's.
ROOM_FOR_STRIDES_BYTES = 1 << 28
# Calls in a row that do not come to the gate before the device goes on: the first may load code, which waits.
_MOST_LATE = 3


class WorkerHandle:
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
        self._calls = WorkerCalls(worker, timeouts, ranks)
        self._overhead_ns, self._ranks = overhead_ns, ranks
        self._inbox: Arena | None = None
        self._boxes: Boxes | None = None
        self._gates: list[socket.socket] = []  # of each rank
        self._hold: Hold | None = None
        self._mapped: GpuArguments | None = None
        self._late = 0  # calls in a row whose launches waited for the device that is held
        self._captured: list[dict[str, Result]] = []
        self._has_views = False
        self.standing = worker.standing()
        self.prepares = False
        self.put_back: tuple[str, ...] = ()  # settings of the process that imports of the case had changed
        self.first_s = 0.0  # that the first call of the case took
        self.kernels: dict[str, str] = {}

    def load(
        self,
        case: Case,
        layers: Sequence[str],
        implementations: dict[str, str],
        inbox: Arena,
        again: bool = False,
        held: bool = False,
        baseline_s: float = 0.0,
    ) -> dict[str, Result]:
        """Import, build, attach to the inbox (which holds the first inputs) and call once; describes the
        results. `again`: import nothing anew, for another case with the same layers. `held`: what is timed
        then (call_path.py). `baseline_s`: the baseline's first call took so long."""
        self.unload()
        self.worker.restless = self.worker.meddled = None
        limits = self._timeouts
        self._calls.call(
            "open", limits.open, layers=list(layers), case=case, implementations=implementations, again=again
        )
        built = self._calls.answer("build", Built, limits.build)
        self.prepares, self.put_back = built.prepares, built.put_back
        self._inbox, self._has_views = inbox, views.are_in(views.arguments(case))
        if not held:
            self._calls.call("attach", limits.build, inbox.descriptors, ticket=inbox.ticket)
        else:
            self._hold = Hold(self._ranks)
            with contextlib.ExitStack() as sent:
                ends = [hold_gate.pair() for _ in range(self._ranks)]
                self._gates = [ours for ours, _ in ends]
                theirs = [sent.enter_context(end).fileno() for _, end in ends]
                descriptors = *inbox.descriptors, *theirs
                self._calls.call(
                    "attach", limits.build, descriptors, ticket=inbox.ticket, words=self._hold.tickets
                )
        begin = time.monotonic()
        first = self._calls.answer("first", First, limits.first_beside(baseline_s))
        self.first_s = time.monotonic() - begin
        self.kernels, self.put_back = first.kernels, (*self.put_back, *first.put_back)
        return first.outputs

    def give_boxes(
        self,
        inputs: Mapping[str, TensorSpec],
        results: dict[str, Result],
        links_of: Callable[[str], int],
        arguments: Mapping[str, TensorSpec],
    ) -> None:
        """Room for results as the baseline describes them, and for the inputs as they are after a call, of so
        many links. `arguments`: of links that the judge times on a device that it holds."""
        assert self._inbox is not None
        wanted = [
            Want(name, r.description.shape, getattr(torch, r.description.dtype), _room(r), links_of(name))
            for name, r in results.items()
        ]
        self._boxes = boxes = Boxes.create(self._device, self._inbox, wanted, inputs, links_of)
        if self._hold is not None:
            self._mapped = GpuArguments(wanted, arguments, self._ranks)
        self._calls.call("boxes", self._timeouts.build, boxes.descriptors, **boxes.tickets)
        self.worker.pause()

    def capture(self, plan: ChainPlan, arguments: Mapping[str, Tensor]) -> Captured:
        """Capture a chain of new links on these arguments, [n, *shape], at other addresses than before."""
        mapped = self._mapped
        assert mapped is not None
        lent = mapped.lend(plan.links, arguments)
        answer = self._calls.answer("capture", Captured, self._timeouts.first, plan=plan, lent=lent)
        mapped.take_back()
        if answer.captured:
            if len(answer.outputs) != plan.links or answer.shown is None:
                raise self._calls.garbled(
                    "capture", f"{len(answer.outputs)} of {plan.links} links are described"
                )
            where = answer.shown
            self.kernels, self._captured = answer.kernels, answer.outputs
            self._calls.reached("capture", lambda: mapped.find([where]))
        self.worker.pause()
        return answer

    def settle(self, arguments: Mapping[str, Tensor]) -> None:
        """One new link on these arguments, of every rank, [n, *shape], for calls that are not captured."""
        mapped = self._mapped
        assert mapped is not None
        lent = mapped.lend(1, arguments)
        self._calls.call("settle", self._timeouts.first, lent=lent)
        mapped.take_back()
        self.worker.pause()

    def iterate(
        self,
        inputs: Mapping[str, Tensor],
        contract: str,
        fresh: bool,
        parameters: bool,
        echo: Sequence[str],
        echo_results: bool = False,
        order: Sequence[int] = (),
        late: Late | None = None,
        strided: bool = False,
    ) -> Reading:
        """One iteration on these arguments, [n, *shape]; of a captured chain, of these links in this `order`.
        The worker sleeps afterwards. With a rank that is `late` its times mean nothing. `strided`: the layout
        of an uncaptured call's inputs; the links of a chain have theirs.

        What is asked for once the clock has stopped must come from the worker's own memory: whoever left
        copies beside the call out, to compute in their time, has nothing to show.
        """
        # What is checked before anything is timed lies in boxes.
        mapped = None if contract == "host" else self._mapped
        ran = sorted(order) if 0 < len(order) < len(self._captured) else None
        how: dict[str, Any] = {
            "contract": contract,
            "fresh": fresh,
            "parameters": parameters,
            "order": list(order),
            "strided": strided,
        }
        if mapped is None:
            assert self._boxes is not None
            self._boxes.clear()
            timed, window_ns, kept, is_late = call_path.asked(self._calls, self._boxes, inputs, late, **how)
        else:
            timed, window_ns, kept, is_late = self._called_held(mapped, inputs, echo, late, ran=ran, **how)
        self._late = self._late + 1 if is_late else 0
        clock_mhz = self._clock.sample()
        strayed = False
        if mapped is None:
            inspected, echoed, lasting = self._inspected(kept, echo, echo_results)
        else:
            asked_for = [name for name in echo if not mapped.brings(name)]
            inspected, echoed, _ = self._inspected(kept, asked_for, echo_results=False)
            echoed |= mapped.echoed()
            lasting = not echo_results or mapped.last(ran)
            # Before a link that runs alone another one does.
            strayed = ran is not None and len(ran) > 1 and mapped.strayed(ran)
            if contract != "graph":
                mapped.lose()
        overhead_ns = 0 if contract == "host" else self._overhead_ns
        results = self._captured if contract == "graph" else inspected.outputs
        if contract != "graph" and len(results) != self._ranks:
            raise self._calls.garbled("inspect", f"{len(results)} of {self._ranks} ranks are described")
        results = results if ran is None else [results[link] for link in ran]
        links = len(results)
        calls = links if contract == "graph" else 1  # ranks make one call together
        waits = self._late > _MOST_LATE
        taken = slice(links) if ran is None else ran  # of boxes, which may have room for more
        alternate = contract == "graph" and self._has_views
        layouts = [views.is_strided(link) if alternate else strided for link in ran or range(links)]
        return Reading(
            ns=max(timed.ns - overhead_ns, 1) / calls,
            claimed_ns=timed.ns,
            window_ns=window_ns,
            hidden=waits or not is_late,
            waits=waits,
            clock_mhz=clock_mhz,
            threads=inspected.threads,
            described=tuple({n: r.description for n, r in described.items()} for described in results),
            outputs=self._lay(kept, results, taken),
            echo={name: of_links(value, taken) for name, value in echoed.items()},
            flags=inspected.flags,
            lasting=lasting,
            strayed=strayed,
            walk_ns=None if mapped is None else mapped.walk_ns,
            strided=tuple(layouts),
        )

    def again(self, reading: Reading) -> dict[str, Tensor]:
        """The results of the call before the last one, as they lie in memory now; `reading` is that
        call's. Asked again, of the same call, however many there were since."""
        assert self._boxes is not None
        self._boxes.clear()
        self._calls.call("again", self._timeouts.call)
        self.worker.pause()
        box = self._boxes.results()
        return {
            name: box.view(name, tensor.shape[1:], tensor.stride()[1:])[: len(tensor)]
            for name, tensor in reading.outputs.items()
            if name.startswith("out.")
        }

    def compiled(self, again: bool) -> Compiled:
        """What torch.compile says of the case's module; `again`: traces of the cases before may serve it."""
        return self._calls.answer("compiled", Compiled, self._timeouts.first, again=again)

    def launched(self) -> list[Launched]:
        """The kernels of one eager call, as the worker says."""
        answer = self._calls.answer("launched", Launches, self._timeouts.first)
        return [Launched(kernel.name, kernel.ns) for kernel in answer.kernels]

    def unload(self) -> None:
        """Forget the case, and free its boxes."""
        if self.worker.busy:
            self.worker.close()  # interrupted in a call: nobody knows when it would answer
        elif self.worker.alive and self._inbox is not None:
            # A worker that cannot even forget is replaced by its owner.
            with contextlib.suppress(WorkerProblem):
                self.worker.call("close", self._timeouts.build)
        for surrounding in (self._boxes, self._mapped, self._hold):
            if surrounding is not None:
                surrounding.close()
        for channel in self._gates:
            channel.close()
        self._inbox = self._boxes = self._hold = self._mapped = None
        self._gates = []
        self._late = 0
        self._captured = []

    def _called_held(
        self,
        mapped: GpuArguments,
        inputs: Mapping[str, Tensor],
        echo: Sequence[str],
        late: Late | None,
        **how: Any,
    ) -> Made:
        """A call on devices that the judge holds."""
        assert self._hold is not None
        if how["contract"] == "graph":
            mapped.spoil()
        elif how["fresh"]:
            how["lent"] = mapped.lend(1)
        return call_path.held(self._calls, self._gates, self._hold, mapped, inputs, echo, late, **how)

    def _inspected(
        self, kept: Arena, echo: Sequence[str], echo_results: bool
    ) -> tuple[Inspected, dict[str, Tensor], bool]:
        """What the worker says of the last call, the named inputs as it has left them, and, where it is asked
        for the results once more, whether they are those that were kept."""
        boxes = self._boxes
        assert boxes is not None
        if echo_results:
            boxes.clear()
        inspected = self._calls.answer(
            "inspect", Inspected, self._timeouts.call, echo=list(echo), echo_results=echo_results
        )
        self.worker.pause()
        return inspected, boxes.echoed(echo), not echo_results or boxes.last(kept)

    def _lay(
        self, box: Arena, results: Sequence[dict[str, Result]], links: list[int] | slice
    ) -> dict[str, Tensor]:
        """Tensors over a copy of the outbox with the shapes and strides that the worker says of each of these
        links (the referee holds those of one layout against each other). Those that do not fit stay out:
        their description already differs from the baseline's."""
        laid = {}
        for name in results[0]:
            told = [one[name].description for one in results if name in one]
            slot = box.ticket.slots.get(name)
            if slot is None or any(d.dtype != slot.dtype or d.shape != slot.shape for d in told):
                continue
            with contextlib.suppress(ValueError):
                by_stride = {d.stride: of_links(box.view(name, d.shape, d.stride), links) for d in told}
                if len(by_stride) == 1:
                    (laid[name],) = by_stride.values()
                else:
                    laid[name] = torch.stack([by_stride[d.stride][i] for i, d in enumerate(told)])
        return laid


def _room(result: Result) -> int:
    return result.span_bytes * (2 if result.span_bytes <= ROOM_FOR_STRIDES_BYTES else 1)
