"""One link of a chain, in a worker: a module, the tensors of its call, and its last results.

    link = Link(device, case, module)       usually a module of its own; `sharing` makes one with the same
    link.attach(inbox, index, lent)         loads its parameters, binds the call to its tensors
    link.give_boxes(outbox, echo)           where results and inputs go after a call; or
    link.tell_places(echo)                  results stay where they are, and `places_of_...` say where that is
    link.stage_parameters(), link.hold(), link.stage(), link.run(), link.keep(result), link.copy_out(names)

A call that is not captured has one link. What links share, the first of them loads, stages and copies out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from fastkernels.loader import views
from fastkernels.loader.materialize import Call, bind
from fastkernels.records import Case
from fastkernels.runner.device import WorkerDevice
from fastkernels.runner.results import Result, Results, Told, Whereabouts
from fastkernels.runner.shared import Attached
from fastkernels.runner.staging import Staging


class Link:
    """Copies are raw and enqueued on the timed stream; nothing here waits, except where parameters load."""

    def __init__(
        self, device: WorkerDevice, case: Case, module: nn.Module, owns_parameters: bool = True
    ) -> None:
        self._device, self._case, self._module = device, case, module
        self._owns_parameters = owns_parameters
        # `prepare` repacks the parameters, so they cannot change under a captured graph.
        self.prepares = any(callable(getattr(part, "prepare", None)) for part in self._module.modules())

    def sharing(self) -> Link:
        """Another link with the same module."""
        return Link(self._device, self._case, self._module, owns_parameters=False)

    def attach(
        self, inbox: Attached, index: int, lent: Attached | None = None, strided: bool = False
    ) -> None:
        """Copy the inbox's inputs in, load its parameters, and make the call on them. `lent`: where the
        inputs are, in the inbox's place. `strided`: they lie there as in the model (loader/views.py)."""
        self._index, self._strided = index, strided
        self._staging = Staging(self._device, inbox, index, self._module, lent)
        self.stage()
        self._device.wait()
        self._bind(load=self._owns_parameters)
        if self._owns_parameters:
            self._staging.take_parameters()

    def give_boxes(self, outbox: Attached, echo: Attached) -> None:
        self._echo = echo
        self._keep_in(Results(self._device, outbox, self._index))

    def tell_places(self, echo: Attached) -> None:
        """In the place of an outbox: what is kept stays where it lies."""
        self._echo = echo
        self._keep_in(Whereabouts(self._device))

    def _keep_in(self, results: Results | Whereabouts) -> None:
        self._results = results
        self._result: Any = None
        self._lasting: dict[str, Any] = {}

    # ------------------------------------------------------------ the call

    def move(self, lent: Attached | None = None) -> None:
        """Go on with inputs at other addresses."""
        self._staging.move(lent)
        self._bind(load=False)

    def lay(self, strided: bool) -> None:
        """Go on with inputs in this layout."""
        if strided != self._strided:
            self._strided = strided
            self._bind(load=False)

    def stage(self) -> None:
        """Copy the inputs in."""
        self._staging.stage()

    def stage_parameters(self) -> None:
        """Copy the parameters in, where they are not another link's."""
        if self._owns_parameters:
            self._staging.stage_parameters()

    def load_parameters(self) -> None:
        """Load the inbox's parameters as a model's weights are loaded, repacking included."""
        self._staging.load_parameters()

    def ambient(self) -> AbstractContextManager[None]:
        return self.call.ambient()

    def run(self) -> Any:
        """The call inside its ambient step: for a capture, or where nobody looks at the time."""
        with self.ambient():
            return self.call.run()

    # ------------------------------------------------------------ results

    def hold(self) -> None:
        """Hold the results of the last call over the next one, as a caller would that still needs them."""
        self._held = self.call.outputs(self._result) if self._result is not None else {}

    def keep(self, result: Any) -> None:
        """Copy the results of the call into the outbox."""
        self._result = result
        self.keep_last()

    def keep_last(self) -> None:
        """Copy them once more, as they are now."""
        self._results.keep(self.call.outputs(self._result))

    def keep_held(self) -> None:
        """Copy the results of the call before the last one into the outbox, as they are now; asked again,
        those of the first time, which are held from then on."""
        held = {name: value for name, value in self._held.items() if name.startswith("out.")}
        self._lasting = self._lasting or held
        self._results.keep(self._lasting)

    def copy_out(self, names: Sequence[str]) -> None:
        """Copy the named inputs, as they are now, into the echo box."""
        mine = [name for name in names if self._owns_parameters or not name.startswith("param.")]
        self._staging.copy_out(mine, self._echo)

    def places_of_results(self) -> Told:
        """Of those that were kept last."""
        assert isinstance(self._results, Whereabouts)
        return self._results.places

    def describe(self, result: Any) -> dict[str, Result]:
        return Results.describe(self.call.outputs(result), self._staging.tensors)

    def describe_last(self) -> dict[str, Result]:
        return self.describe(self._result)

    def _bind(self, load: bool) -> None:
        """Parameters are loaded strictly, once; later by raw copies."""
        tensors = views.seen(views.arguments(self._case), self._staging.tensors, self._strided)
        if load:
            tensors = {**tensors, **self._staging.parameter_copies()}
        self.call: Call = bind(self._module, self._case, tensors, load=load)
