"""One side of tier 1, inside its own process: a task's module on one case, driven by the judge step by step.

    open → build → attach → first → boxes → [capture] → (prepare → go → inspect)* → close

Every step answers with JSON values. Inputs arrive in the inbox just before an iteration and are copied from
there by the driver or memmove, never through torch's operators; results leave the same way, directly after
the timed call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fastkernels.loader.materialize import Call, bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.contracts import Contract, Graph, Timing
from fastkernels.records import Case
from fastkernels.runner import forcing
from fastkernels.runner.device import WorkerDevice, open_device
from fastkernels.runner.results import Results, address
from fastkernels.runner.seen import recorded
from fastkernels.runner.shared import Attached, Ticket
from fastkernels.runner.staging import Staging

WARM_UP_CALLS = 2  # a process that slept finds cold caches: the first call takes several times as long


class KernelSide:
    """`device` is `cpu` or `cuda`; `threads` of torch on the CPU. Made before any candidate is imported."""

    def __init__(self, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._threads = torch.get_num_threads
        self._device: WorkerDevice = open_device(device)
        self._contracts: dict[str, Contract] = self._device.contracts()
        self._opened = contextlib.ExitStack()
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

    def open(self, layers: Sequence[str], case: Case, implementations: dict[str, str]) -> dict[str, Any]:
        """Import the task through the overlay; `implementations` forces kernels (`--providers`)."""
        self.close()
        self._case = case
        self.overlay = Overlay.over_baseline([Path(layer) for layer in layers])
        self._implementations = implementations
        if implementations:
            self._opened.enter_context(forcing.preferring(implementations))
        self.overlay.load(case.task)
        return {}

    def build(self) -> dict[str, Any]:
        """Build the module. `prepares`: it repacks its parameters, so they cannot change under a captured
        graph."""
        assert self.overlay is not None
        self._module = build_module(self.overlay, self._case, self._device.name)
        prepares = any(callable(getattr(part, "prepare", None)) for part in self._module.modules())
        return {"prepares": prepares}

    def attach(self, ticket: Ticket, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Take the inbox and copy its first inputs in."""
        inbox = self._opened.enter_context(
            contextlib.closing(Attached(ticket, descriptors, self._device.driver))
        )
        self._staging = Staging(self._device, inbox, self._module)
        self._bind()
        return {}

    def first(self) -> dict[str, Any]:
        """The first call, with everything that it compiles; describes the results and names the kernels that
        ran."""
        with recorded() as seen, torch.inference_mode(), self._call.ambient():
            result = self._call.run()
            self._device.wait_all()
        forcing.require(self._implementations, seen)
        outputs = self._call.outputs(result)
        described = Results.describe(outputs, self._staging.tensors)
        self._sizes = [max(r.span_bytes, r.bytes) for r in described.values()]
        return {
            "outputs": {name: r.model_dump(mode="json") for name, r in described.items()},
            "kernels": seen,
        }

    def boxes(self, outbox: Ticket, echo: Ticket, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Take the boxes for results, and for the inputs as the call left them."""
        first, second = ([d] for d in descriptors) if descriptors else ([], [])
        self._outbox = self._opened.enter_context(
            contextlib.closing(Attached(outbox, first, self._device.driver))
        )
        self._echo = self._opened.enter_context(
            contextlib.closing(Attached(echo, second, self._device.driver))
        )
        self._results = Results(self._device, self._outbox)
        return {}

    def capture(self) -> dict[str, Any]:
        """Capture the call in a CUDA graph. What cannot be captured is an answer, not an error."""
        graph = self._contracts["graph"]
        assert isinstance(graph, Graph)
        try:
            # Under capture a kernel may take another implementation than eagerly: what the graph holds is
            # what counts.
            with recorded() as seen, torch.inference_mode(), self._call.ambient():
                graph.capture(self._call.run)
        except Exception as error:
            return {"captured": False, "detail": f"{type(error).__name__}: {error}", "kernels": {}}
        return {"captured": True, "detail": "", "kernels": seen}

    def renew(self) -> dict[str, Any]:
        """Capture again with every tensor of the call somewhere else in memory, on the inputs of the last
        iteration.
        """
        self._staging.move()
        # A capture runs the call for real: indices must be valid before it, and new memory holds anything.
        self._staging.stage(parameters=False)
        self._device.wait()
        self._bind(load=False)
        return self.capture()

    # ------------------------------------------------------------ one iteration

    def prepare(self, contract: str, fresh: bool, parameters: bool) -> dict[str, Any]:
        """Before the judge's clock starts. `fresh`: other addresses; `parameters`: new ones have come in the
        inbox."""
        self._contract = self._contracts[contract]
        self._parameters = parameters
        if contract == "host":
            self._warm_up()
        if fresh:
            self._staging.move()
            self._bind(load=False)
        if parameters and self._staging.prepares:
            self._staging.load_parameters()
            self._parameters = False
            if isinstance(self._contract, Graph):
                with torch.inference_mode(), self._call.ambient():
                    self._contract.capture(self._call.run)
        self._device.poison_free_memory(self._sizes)
        with torch.inference_mode():
            self._contract.prepare(self._stage)
        return {}

    def go(self) -> dict[str, Any]:
        """The timed call. The results lie in the outbox when this returns."""
        self._keep_previous()
        with torch.inference_mode(), self._call.ambient():
            timing: Timing = self._contract.run(self._stage, self._call.run, self._keep)
        return {"ns": timing.ns, "hidden": timing.hidden}

    def inspect(self, echo: Sequence[str]) -> dict[str, Any]:
        """Describe the results of `go`; copy the named inputs, as they are now, into the echo box."""
        self._staging.copy_out(echo, self._echo)
        described = Results.describe(self._call.outputs(self._result), self._staging.tensors)
        return {
            "outputs": {name: result.model_dump(mode="json") for name, result in described.items()},
            "threads": self._threads(),
        }

    def again(self) -> dict[str, Any]:
        """Copy the results of the call before the last one into the outbox: they must not have changed."""
        self._results.keep({k: v for k, v in self._previous.items() if k.startswith("out.")})
        self._device.wait()
        return {}

    def compiled(self) -> dict[str, Any]:
        """Whether the module can be traced whole by torch.compile, as its parent in an engine would be."""
        from fastkernels.runner.compiling import check

        return check(self._call)

    def close(self) -> dict[str, Any]:
        """Forget the case."""
        self._opened.close()
        for name in ("_call", "_module", "_staging", "_results", "_result", "_previous"):
            self.__dict__.pop(name, None)
        for contract in self._contracts.values():
            if isinstance(contract, Graph):
                contract.release()
        self._device.release()
        return {}

    # ------------------------------------------------------------ inside

    def _bind(self, load: bool = True) -> None:
        """Make the call on the current work tensors. Parameters are loaded strictly, once; later by raw
        copies."""
        tensors = self._staging.tensors
        if load:
            self._staging.stage(parameters=False)
            self._device.wait()
            tensors = {**tensors, **self._staging.parameter_copies()}
        self._call: Call = bind(self._module, self._case, tensors, load=load)
        if load:
            self._staging.take_parameters()
            self._result: Any = None

    def _warm_up(self) -> None:
        """Wake the code and the core up after a pause, on the inputs of the last iteration: the next are not
        here yet,
        so there is nothing to learn for the call that counts."""
        with torch.inference_mode(), self._call.ambient():
            for _ in range(WARM_UP_CALLS):
                self._call.run()

    def _stage(self) -> None:
        self._staging.stage(parameters=self._parameters)

    def _keep(self, result: Any) -> None:
        self._result = result
        self._results.keep(self._call.outputs(result))

    def _keep_previous(self) -> None:
        """Hold the results of the last call over the next one, as a caller would that still needs them."""
        self._previous = self._call.outputs(self._result) if self._result is not None else {}
