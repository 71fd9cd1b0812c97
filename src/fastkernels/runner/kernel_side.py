"""One side of tier 1, inside its own process: a task's module on one case, driven by the judge step by step.

    open → build → attach → first → boxes → [capture] → (prepare → go → inspect)* → close

A case has one link (link.py): the module with its tensors. `capture` replaces it by a chain of new ones, for
the graph contract; captured again, all of them lie elsewhere in memory.

Every step answers with JSON values. Inputs arrive in the inbox with `go`, not before, and are copied from
there by the driver or memmove, never through torch's operators; results leave the same way, directly after
the timed call. A single process on a CPU copies neither, where the judge can do it (transport.py). Parameters
arrive with `prepare` and are copied before it answers: in the judge's window of a call, a candidate that
leaves that copy out could compute instead.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fastkernels.loader.materialize import build_module, parts
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.contracts import Contract, Eager, Graph, Host, Timing
from fastkernels.measure.unused import MUCH_BYTES
from fastkernels.records import Case
from fastkernels.runner import flags, forcing
from fastkernels.runner.chain_copies import ChainCopies
from fastkernels.runner.compiling import Tracer
from fastkernels.runner.device import Cuda, WorkerDevice, open_device
from fastkernels.runner.gate import Gate
from fastkernels.runner.link import Link
from fastkernels.runner.results import Result, address, reaches
from fastkernels.runner.seen import recorded
from fastkernels.runner.shared import Attached, Ticket

WARM_UP_CALLS = 2  # a process that slept finds cold caches: the first call takes several times as long
# Memory of random size that is taken before a chain is built pushes its tensors to other pages of the device.
MOST_BALLAST_BYTES = 32 << 20


class KernelSide:
    """`device` is `cpu` or `cuda`; `threads` of torch on the CPU. Made before any candidate is imported.
    `rank`: in a group, whose calls begin when `start` returns, and on a device behind `align`."""

    def __init__(
        self,
        device: str,
        threads: int,
        rank: int = 0,
        start: Callable[[], None] | None = None,
        align: Callable[[], None] | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self._threads, self._flags = torch.get_num_threads, flags.read
        self._device: WorkerDevice = open_device(device)
        self._device_flags = self._device.flags
        self._rank = rank
        self._contracts: dict[str, Contract] = (
            {"collective": self._device.collective(start, align)} if start else self._device.contracts()
        )
        self._opened = contextlib.ExitStack()
        self._ballast = random.Random()
        self._gate: Gate | None = None  # of a worker that is alone on a CPU
        self._links: list[Link] = []
        self._chain: ChainCopies | None = None
        self._tracer = Tracer()
        self.overlay: Overlay | None = None

    def hello(self) -> dict[str, Any]:
        return {"overhead_ns": self._device.overhead_ns()}

    def probe(self, ticket: Ticket, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Whether shared memory of the judge can be reached from here at all."""
        attached = Attached(ticket, descriptors, self._device.driver)
        byte = torch.empty(1, dtype=torch.uint8, device=self._device.name)
        self._device.copy(address(byte), attached.address("probe"), 1)
        self._device.wait()
        value = int(byte)
        attached.close()
        return {"byte": value}

    # ------------------------------------------------------------ one case

    def open(
        self, layers: Sequence[str], case: Case, implementations: dict[str, str], again: bool
    ) -> dict[str, Any]:
        """Import the task through the overlay; `implementations` forces kernels (`--providers`). `again`:
        what was imported for the case before is not imported anew."""
        self.close()
        self._case = case
        if not again or self.overlay is None:
            self.overlay = Overlay.over_baseline([Path(layer) for layer in layers])
        self._implementations = implementations
        if implementations:
            self._opened.enter_context(forcing.preferring(implementations))
        self.overlay.load(case.task)
        return {}

    def build(self) -> dict[str, Any]:
        """Build the module. `prepares`: it repacks its parameters, so they cannot change under a captured
        graph."""
        self._links = [self._new_link()]
        return {"prepares": self._links[0].prepares}

    def attach(
        self,
        ticket: Ticket,
        descriptors: Sequence[int] = (),
        direct: bool = False,
        words: Ticket | None = None,
    ) -> dict[str, Any]:
        """Take the inbox and copy its first inputs in. `direct`: from then on the judge moves arguments and
        results itself, and is told where they lie (transport.py). `words`: by which it holds the device
        (hold.py). With either the last descriptor is a gate's."""
        *boxes, last = descriptors if direct or words else (*descriptors, None)
        gate = None if last is None else self._opened.enter_context(contextlib.closing(Gate(last)))
        self._gate = gate if direct else None
        hold = None
        if words:
            assert gate is not None
            assert isinstance(self._device, Cuda), "nothing is enqueued on a CPU"
            hold = self._device.held(gate, self._box(words, ()))
        for contract in self._contracts.values():
            if isinstance(contract, Eager):
                contract.hold = hold
        self._inbox = self._box(ticket, boxes)
        self._links[0].attach(self._inbox, self._rank)
        if direct:
            self._links[0].tell_places()
        return {}

    def first(self) -> dict[str, Any]:
        """The first call, with everything that it compiles; describes the results and names the kernels that
        ran."""
        (link,) = self._links
        with recorded() as seen, torch.inference_mode():
            result = link.run()
            self._device.wait_all()
        forcing.require(self._implementations, seen)
        described = link.describe(result)
        self._sizes = [max(r.span_bytes, r.bytes) for r in described.values()]
        return {"outputs": _plain(described), "kernels": seen}

    def boxes(self, outbox: Ticket, echo: Ticket, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Take the boxes for results, and for the inputs as the call left them."""
        first, second = ([d] for d in descriptors) if descriptors else ([], [])
        self._outbox, self._echo = self._box(outbox, first), self._box(echo, second)
        self._links[0].give_boxes(self._outbox, self._echo)
        return {}

    def capture(self, plan: ChainPlan) -> dict[str, Any]:
        """Capture a chain of new links, with what lies in the inbox. What cannot be captured is an answer, no
        error: one link is there then, as before."""
        graph = self._graph()
        self._forget()
        self._device.release(MUCH_BYTES)
        ballast = torch.empty(
            self._ballast.randrange(1, MOST_BALLAST_BYTES), dtype=torch.uint8, device=self._device.name
        )
        self._links = self._attached_links(plan)
        del ballast
        try:
            # Under capture a kernel may take another implementation than eagerly: what the graph holds is
            # what counts.
            with recorded() as seen, torch.inference_mode():
                results = graph.capture([link.run for link in self._links])
        except Exception as error:
            self._links = self._attached_links(ChainPlan())
            return {
                "captured": False,
                "detail": f"{type(error).__name__}: {error}",
                "kernels": {},
                "outputs": [],
            }
        self._chain = ChainCopies(self._device, self._links, results)
        described = [_plain(link.describe(result)) for link, result in zip(self._links, results)]
        return {"captured": True, "detail": "", "kernels": seen, "outputs": described}

    # ------------------------------------------------------------ one iteration

    def prepare(
        self, contract: str, fresh: bool, parameters: bool, spin_cycles: int, link: int | None = None
    ) -> dict[str, Any]:
        """Before the judge's clock starts; the inbox holds parameters and no inputs. `fresh`: other
        addresses; `parameters`: new ones have come. A captured chain runs all links, at their addresses, or
        `link` alone; everything else runs the first."""
        self._contract = self._contracts[contract]
        self._captured = isinstance(self._contract, Graph)
        self._number = link
        if isinstance(self._contract, Graph):
            self._contract.choose(link)
        if self._whole:
            self._whole.ready()
        if isinstance(self._contract, Host):
            self._warm_up()
        if fresh and not self._captured:
            self._active.move()
        if parameters:
            self._take_parameters()
        if not self._captured:
            self._device.poison_free_memory(self._sizes)
        with torch.inference_mode():
            self._contract.prepare(spin_cycles)
        return {"places": self._active.places_of_arguments()} if self._gate else {}

    def go(self) -> dict[str, Any]:
        """The timed call. The results lie in the outbox when this returns, or where it has said."""
        if not self._captured:
            self._active.hold()
        stage, keep = (self._gate.wait, self._leave) if self._gate else (self._stage, self._keep)
        with torch.inference_mode(), self._active.ambient():
            timing: Timing = self._contract.run(stage, self._active.call.run, keep)
        return {"ns": timing.ns, "hidden": timing.hidden}

    def inspect(self, echo: Sequence[str], echo_results: bool = False) -> dict[str, Any]:
        """Describe the results of `go`; copy the named inputs, as they are now, into the echo box, and, if
        asked, the results into the outbox again. What a chain returns was described when it was captured."""
        self._device.wait_all()  # what a call left running elsewhere must not run beside the other side
        places = {}
        if self._gate:
            places = {"places": self._active.places_of(echo)}
        else:
            (self._whole or self._active).copy_out(echo)
            if echo_results:
                (self._whole or self._active).keep_last()
        self._device.wait()
        described = [] if self._captured else [_plain(self._active.describe_last())]
        settings = {**self._flags(), **self._device_flags()}
        return {"outputs": described, "threads": self._threads(), "flags": settings, **places}

    def again(self) -> dict[str, Any]:
        """Copy the results of the call before the last one into the outbox, or say where they are: they must
        not have changed, now and whenever this is asked again."""
        self._links[0].keep_held()
        self._device.wait()
        return {"places": self._links[0].places_of_results()} if self._gate else {}

    def compiled(self, again: bool) -> dict[str, Any]:
        """Whether the module can be traced whole by torch.compile; `again`: after other sizes of its kind."""
        if not again:
            self._tracer.forget()
        return self._tracer.trace(self._links[0].call)

    def launched(self) -> dict[str, Any]:
        """The kernels of one eager call, for attribution."""
        from fastkernels.runner.launches import launched

        return {"kernels": launched(self._links[0].call)}

    def close(self) -> dict[str, Any]:
        """Forget the case."""
        self._forget()
        self._opened.close()
        self._device.release()
        return {}

    # ------------------------------------------------------------ inside

    def _forget(self) -> None:
        """Let go of links and chain: a result that is held keeps the memory of its graph."""
        if self._chain is not None:
            self._chain.close()
        self._chain, self._links = None, []
        if "graph" in self._contracts:
            self._graph().release()

    @property
    def _whole(self) -> ChainCopies | None:
        """The chain, where the iteration runs all of it."""
        return self._chain if self._captured and self._number is None else None

    @property
    def _active(self) -> Link:
        """The link that the iteration runs, or the first of all."""
        return self._links[self._number or 0]

    def _graph(self) -> Graph:
        graph = self._contracts["graph"]
        assert isinstance(graph, Graph)
        return graph

    def _box(self, ticket: Ticket, descriptors: Sequence[int]) -> Attached:
        attached = Attached(ticket, descriptors, self._device.driver)
        return self._opened.enter_context(contextlib.closing(attached))

    def _new_link(self) -> Link:
        assert self.overlay is not None
        return Link(self._device, self._case, build_module(self.overlay, self._case, self._device.name))

    def _attached_links(self, plan: ChainPlan) -> list[Link]:
        links: list[Link] = []
        for index in range(plan.links):
            links.append(links[0].sharing() if links and plan.shares_parameters else self._new_link())
            links[-1].attach(self._inbox, index)
            links[-1].give_boxes(self._outbox, self._echo)
        return links

    def _take_parameters(self) -> None:
        """Those in the inbox; a module that repacks them does it anew, where nothing of it is captured."""
        if self._active.prepares and not self._captured:
            self._active.load_parameters()
        else:
            with torch.inference_mode():
                (self._whole or self._active).stage_parameters()
        self._device.wait()

    def _warm_up(self) -> None:
        """Wake the code and the core up after a pause, on the inputs of the last iteration: the next are not
        here yet, so there is nothing to learn for the call that counts."""
        with torch.inference_mode():
            for _ in range(WARM_UP_CALLS):
                self._links[0].run()

    def _stage(self) -> None:
        (self._whole or self._active).stage()

    def _leave(self, result: Any) -> None:
        assert self._gate is not None
        self._gate.leave(reaches(parts(result)))
        self._active.returned(result)

    def _keep(self, result: Any) -> None:
        if self._whole:
            self._whole.keep_last()
            return
        if self._captured:
            (result,) = result
        self._active.keep(result)


def _plain(described: dict[str, Result]) -> dict[str, Any]:
    return {name: result.model_dump(mode="json") for name, result in described.items()}
