"""One side of tier 1, inside its own process: a task's module on one case, driven by the judge step by step.

    open → build → attach → first → boxes → [capture, settle] → (prepare → go → inspect)* → close

A case has one link (bound_call.py): the module with its tensors. For what the judge times on a device that it
holds `capture` replaces it by a chain of new ones, or `settle` by one, whose arguments lie in memory that the
judge lends (transfer/gpu_arguments.py). Captured again, all of them lie elsewhere.

Every step answers with JSON values. Inputs arrive with `go`, not before. On a device that it holds the judge
moves inputs and results itself (transfer/gpu_arguments.py). Otherwise inputs are copied from the inbox by the
driver or memmove, never through torch's operators, and results leave the same way, directly after the timed
call (transfer/boxes.py). Parameters arrive with `prepare` and are copied before it answers: in the
judge's window of a call, a candidate that leaves that copy out could compute instead.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fastkernels.loader import views
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.contracts import Contract, Eager, Graph, Host
from fastkernels.measure.unused import MUCH_BYTES
from fastkernels.records import Case
from fastkernels.runner.inside import flags, forcing
from fastkernels.runner.inside.bound_call import Link
from fastkernels.runner.inside.compile_tracer import Tracer
from fastkernels.runner.inside.device import Cuda, WorkerDevice, open_device
from fastkernels.runner.inside.results import Result, address
from fastkernels.runner.inside.what_ran import recorded
from fastkernels.runner.transfer.gpu_arguments import shown
from fastkernels.runner.transfer.hold_gate import Gate
from fastkernels.runner.transfer.shared_memory import Attached, Ticket

WARM_UP_CALLS = 2  # a process that slept finds cold caches: the first call takes several times as long
# Memory of random size that is taken before a chain is built pushes its tensors to other pages of the device.
MOST_BALLAST_BYTES = 32 << 20


class KernelSide:
    """`device` is `cpu` or `cuda`; `threads` of torch on the CPU. Made before any candidate is imported.
    `rank`: in a group, whose calls begin when `start` returns."""

    def __init__(
        self,
        device: str,
        threads: int,
        rank: int = 0,
        start: Callable[[], None] | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self._threads, self._flags = torch.get_num_threads, flags.read
        self._device: WorkerDevice = open_device(device)
        self._device_flags, self._kept = self._device.flags, flags.Kept()
        self._rank = rank
        self._contracts: dict[str, Contract] = self._device.contracts(start)
        self._opened = contextlib.ExitStack()
        self._ballast = random.Random()
        self._gate: Gate | None = None  # where the judge holds the device
        self._links: list[Link] = []
        self._order: Sequence[int] = ()
        self._lent: Attached | None = None
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
        graph. `put_back`: settings of the process that its imports had changed."""
        self._links = [self._new_link()]
        return {"prepares": self._first_link.prepares, "put_back": self._kept.put_back()}

    def attach(
        self,
        ticket: Ticket,
        descriptors: Sequence[int] = (),
        words: Sequence[Ticket] = (),
    ) -> dict[str, Any]:
        """Take the inbox and copy its first inputs in. `words`: by which the judge holds the devices of all
        ranks (transfer/gpu_hold.py); the last descriptors are gates' then, one for each rank."""
        boxes = descriptors[: len(descriptors) - len(words)]
        self._gate = self._own_gate(descriptors[len(boxes) :])
        hold = None
        if words:
            assert isinstance(self._device, Cuda), "nothing is enqueued on a CPU"
            hold = self._device.held(self._box(words[self._rank], ()))
        for contract in self._contracts.values():
            if isinstance(contract, Eager):
                contract.hold = hold
        self._inbox = self._box(ticket, boxes)
        self._first_link.attach(self._inbox, self._rank)
        return {}

    def first(self) -> dict[str, Any]:
        """The first call, with everything that it imports and compiles; describes the results and names the
        kernels that ran. `put_back`: settings of the process that it had changed."""
        (link,) = self._links
        with recorded() as seen, torch.inference_mode():
            result = link.run()
            self._device.wait_all()
        forcing.require(self._implementations, seen)
        described = link.describe(result)
        self._sizes = [max(r.span_bytes, r.bytes) for r in described.values()]
        return {"outputs": _plain(described), "kernels": seen, "put_back": self._kept.put_back()}

    def boxes(self, outbox: Ticket, echo: Ticket, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Take the boxes for results, and for the inputs as the call left them."""
        first, second = ([d] for d in descriptors) if descriptors else ([], [])
        self._outbox, self._echo = self._box(outbox, first), self._box(echo, second)
        self._first_link.give_boxes(self._outbox, self._echo)
        return {}

    def capture(
        self, plan: ChainPlan, lent: Sequence[Ticket], descriptors: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Capture a chain of new links, with the arguments that lie in the memory that is lent. What cannot
        be captured is an answer, no error: there is no link then, until `settle`."""
        graph = self._graph()
        self._forget()
        self._device.release(MUCH_BYTES)
        ballast = torch.empty(
            self._ballast.randrange(1, MOST_BALLAST_BYTES), dtype=torch.uint8, device=self._device.name
        )
        self._lent = self._borrowed(lent, descriptors)
        self._links = self._lent_links(plan)
        del ballast
        try:
            # Under capture a kernel may take another implementation than eagerly: what the graph holds is
            # what counts.
            with recorded() as seen, torch.inference_mode():
                results = graph.capture([link.run for link in self._links])
            for link, result in zip(self._links, results, strict=True):
                link.keep(result)
            where = self._shown(self._links)
        except Exception as error:
            self._forget()
            detail = f"{type(error).__name__}: {error}"
            return {"captured": False, "detail": detail, "kernels": {}, "outputs": [], "shown": None}
        described = [_plain(link.describe_last()) for link in self._links]
        return {"captured": True, "detail": "", "kernels": seen, "outputs": described, "shown": where}

    def settle(self, lent: Sequence[Ticket], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """One new link, with the arguments that lie in the memory that is lent."""
        self._forget()
        self._lent = self._borrowed(lent, descriptors)
        self._links = self._lent_links(ChainPlan())
        return {}

    # ------------------------------------------------------------ one iteration

    def prepare(
        self,
        contract: str,
        fresh: bool,
        parameters: bool,
        order: Sequence[int] = (),
        lent: Sequence[Ticket] = (),
        descriptors: Sequence[int] = (),
        strided: bool = False,
    ) -> dict[str, Any]:
        """Before the judge's clock starts; the inbox holds parameters and no inputs. `fresh`: other
        addresses, in what is lent or by the worker itself; `parameters`: new ones have come; `strided`: the
        inputs will lie as in the model. Of a captured chain these links run, in this `order`, at their
        addresses and in their layouts; everything else runs the first."""
        self._contract = self._contracts[contract]
        self._captured = isinstance(self._contract, Graph)
        self._order = order
        if isinstance(self._contract, Graph):
            self._contract.choose(order)
        if isinstance(self._contract, Host):
            self._warm_up()
        if fresh and not self._captured:
            self._move(lent, descriptors)
        if not self._captured:
            self._first_link.lay(strided)
        if parameters:
            self._take_parameters()
        if not self._captured:
            self._device.poison_free_memory(self._sizes)
        with torch.inference_mode():
            self._contract.prepare()
        return {}

    def go(self) -> dict[str, Any]:
        """The timed call. The results lie in the outbox when this returns, or where it has said."""
        if not self._captured:
            self._first_link.hold()
        keep = self._show if self._lent else self._keep
        with torch.inference_mode(), self._first_link.ambient():
            return {"ns": self._contract.run(self._stage, self._first_link.call.run, keep)}

    def inspect(self, echo: Sequence[str], echo_results: bool = False) -> dict[str, Any]:
        """Describe the results of `go`; copy the named inputs, as they are now, into the echo box, and, if
        asked, the results into the outbox again. What a chain returns was described when it was captured."""
        self._device.wait_all()  # what a call left running elsewhere must not run beside the other side
        for link in self._running:
            link.copy_out(echo)
        if echo_results:
            self._first_link.keep_last()
        self._device.wait()
        described = [] if self._captured else [_plain(self._first_link.describe_last())]
        settings = {**self._flags(), **self._device_flags()}
        return {"outputs": described, "threads": self._threads(), "flags": settings}

    def again(self) -> dict[str, Any]:
        """Copy the results of the call before the last one into the outbox: they must not have changed, now
        and whenever this is asked again."""
        self._first_link.keep_held()
        self._device.wait()
        return {}

    def compiled(self, again: bool) -> dict[str, Any]:
        """Whether the module can be traced whole by torch.compile; `again`: after other sizes of its kind."""
        if not again:
            self._tracer.forget()
        return self._tracer.trace(self._first_link.call)

    def launched(self) -> dict[str, Any]:
        """The kernels of one eager call, for attribution."""
        from fastkernels.runner.inside.what_ran import launched

        return {"kernels": launched(self._first_link.call)}

    def close(self) -> dict[str, Any]:
        """Forget the case."""
        self._forget()
        self._opened.close()
        self._device.release()
        return {}

    # ------------------------------------------------------------ inside

    def _forget(self) -> None:
        """Let go of links and chain, then of what was lent: a result that is held keeps the memory of its
        graph."""
        self._links = []
        if "graph" in self._contracts:
            self._graph().release()
        if self._lent is not None:
            self._lent.close()
        self._lent = None

    @property
    def _running(self) -> list[Link]:
        """The links that the iteration runs."""
        return [self._links[link] for link in self._order] if self._captured else [self._first_link]

    @property
    def _first_link(self) -> Link:
        """The link that everything runs but a captured chain."""
        return self._links[0]

    def _graph(self) -> Graph:
        graph = self._contracts["graph"]
        assert isinstance(graph, Graph)
        return graph

    def _own_gate(self, descriptors: Sequence[int]) -> Gate | None:
        """Of one gate for each rank; the others are closed."""
        found = None
        for rank, descriptor in enumerate(descriptors):
            gate = Gate(descriptor)
            if rank == self._rank:
                found = self._opened.enter_context(contextlib.closing(gate))
            else:
                gate.close()
        return found

    def _box(self, ticket: Ticket, descriptors: Sequence[int]) -> Attached:
        attached = Attached(ticket, descriptors, self._device.driver)
        return self._opened.enter_context(contextlib.closing(attached))

    def _new_link(self) -> Link:
        assert self.overlay is not None
        return Link(self._device, self._case, build_module(self.overlay, self._case, self._device.name))

    def _lent_links(self, plan: ChainPlan) -> list[Link]:
        links: list[Link] = []
        for index in range(plan.links):
            links.append(links[0].sharing() if links and plan.shares_parameters else self._new_link())
            links[-1].attach(self._inbox, index, self._lent, strided=views.is_strided(index))
            links[-1].tell_places(self._echo)
        return links

    def _borrowed(self, lent: Sequence[Ticket], descriptors: Sequence[int]) -> Attached:
        """What is lent to this rank."""
        return Attached(lent[self._rank], descriptors, self._device.driver)

    def _move(self, lent: Sequence[Ticket], descriptors: Sequence[int]) -> None:
        before, self._lent = self._lent, self._borrowed(lent, descriptors) if lent else None
        self._first_link.move(self._lent)
        if before is not None:
            before.close()

    def _take_parameters(self) -> None:
        """Those in the inbox; a module that repacks them does it anew, where nothing of it is captured."""
        if self._first_link.prepares and not self._captured:
            self._first_link.load_parameters()
        else:
            with torch.inference_mode():
                for link in self._running:
                    link.stage_parameters()
        self._device.wait()

    def _warm_up(self) -> None:
        """Wake the code and the core up after a pause, on the inputs of the last iteration: the next are not
        here yet, so there is nothing to learn for the call that counts."""
        with torch.inference_mode():
            for _ in range(WARM_UP_CALLS):
                self._first_link.run()

    def _stage(self) -> None:
        self._first_link.stage()

    def _show(self, result: Any) -> None:
        """What a chain returns was shown when it was captured."""
        assert self._gate is not None
        if self._captured:
            self._gate.wait()
            return
        self._first_link.keep(result)
        self._gate.show(json.dumps(self._shown([self._first_link])).encode())

    def _shown(self, links: Sequence[Link]) -> dict[str, Any]:
        """Where results lie (transfer/gpu_arguments.py)."""
        assert self._lent is not None
        return shown([link.places_of_results() for link in links], self._lent.span, self._device.block_of)

    def _keep(self, result: Any) -> None:
        self._first_link.keep(result)


def _plain(described: dict[str, Result]) -> dict[str, Any]:
    return {name: result.model_dump(mode="json") for name, result in described.items()}
