"""One link of a chain, in a worker: a module, the tensors of its call, and its last results.

    link = Link(device, case, module)       usually a module of its own; `sharing` makes one with the same
    link.attach(inbox, index, lent)         loads its parameters, binds the call to its tensors
    link.give_boxes(outbox, echo)           where results and inputs go after a call; or
    link.tell_places(echo)                  results stay where they are, and `places_of_...` say where that is
    link.stage_parameters(), link.hold(), link.stage(), link.run(), link.keep(result), link.copy_out(names)

A call that is not captured has one link. What links share, the first of them loads, stages and copies out.

`Staging` brings fresh inputs for every call, from a link's part of the judge's inbox into the tensors that it
works on. Arguments, caches and the step's tensors lie in the worker's own memory, or in what the judge lends,
where it brings them itself; at the same addresses in most iterations and at new ones in some (`move`).
Parameters lie where the module keeps them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.loader import views
from fastkernels.loader.materialize import Call, bind, load_parameters, parameters
from fastkernels.records import Case
from fastkernels.runner.inside.device import WorkerDevice
from fastkernels.runner.inside.results import Result, Results, Told, Whereabouts, address
from fastkernels.runner.transfer.shared_memory import ALIGNMENT, MOST_SHIFTS, Attached, Slot

_PARAMETER = "param."


class Staging:
    """`tensors`: the work tensors by name."""

    def __init__(
        self,
        device: WorkerDevice,
        inbox: Attached,
        link: int,
        module: nn.Module,
        lent: Attached | None = None,
    ) -> None:
        self._device, self._inbox, self._link, self._module = device, inbox, link, module
        self._shifts = random.Random()
        self.tensors: dict[str, Tensor] = {}
        self._inputs: list[tuple[int, int, int]] = []  # (to, from, bytes)
        self._raw_parameters: list[tuple[int, int, int]] = []
        self._converted: list[tuple[Tensor, str]] = []
        self._where: dict[str, Tensor] = {}
        self.move(lent)

    def move(self, lent: Attached | None = None) -> None:
        """Allocate the work tensors anew; the old ones live until then, so the addresses differ. `lent`: work
        on those that lie there."""
        if lent is not None:
            self.tensors = {name: lent.tensor(name, self._link) for name in lent.slots}
            self._inputs = []
            return
        names = [name for name in self._inbox.slots if not name.startswith(_PARAMETER)]
        self.tensors = {name: self._empty(self._inbox.slots[name], shifted=True) for name in names}
        self._inputs = [self._copy_to(tensor, name) for name, tensor in self.tensors.items()]

    def take_parameters(self) -> None:
        """Note where the module keeps its parameters: raw copies where it keeps them as the judge has
        them."""
        self._raw_parameters, self._converted = [], []
        self._where = parameters(self._module)
        for name, value in self._where.items():
            if _fills(value, self._slot_of(name)):
                self._raw_parameters.append(self._copy_to(value, _PARAMETER + name))
            else:
                self._converted.append((value, _PARAMETER + name))

    def stage(self) -> None:
        """Copy the inputs in, those that are not there."""
        for target, source, size in self._inputs:
            self._device.copy(target, source, size)

    def stage_parameters(self) -> None:
        """Copy the parameters in."""
        for target, source, size in self._raw_parameters:
            self._device.copy(target, source, size)
        for value, name in self._converted:
            value.copy_(self._copied(name))

    def parameter_copies(self) -> dict[str, Tensor]:
        """Tensors with the inbox's parameters, for a strict load."""
        names = [name for name in self._inbox.slots if name.startswith(_PARAMETER)]
        copies = {name: self._copied(name) for name in names}
        self._device.wait()
        return copies

    def load_parameters(self) -> None:
        """Load the inbox's parameters strictly, and let the module repack them."""
        load_parameters(self._module, self.parameter_copies())

    def copy_out(self, names: Sequence[str], box: Attached) -> None:
        """Copy inputs, as they are now, into the link's part of a box with the inbox's slots."""
        for name in names:
            value, slot = self._as_sent(name), box.slots[name]
            self._device.copy(box.address(name, self._link), address(value), _bytes(slot))

    def _as_sent(self, name: str) -> Tensor:
        """An input with what it holds now, in the form in which it came."""
        value = self.tensors[name] if name in self.tensors else self._where[name.removeprefix(_PARAMETER)]
        slot = self._inbox.slots[name]
        return value if _fills(value, slot) else value.to(getattr(torch, slot.dtype)).contiguous()

    def _slot_of(self, parameter: str) -> Slot:
        return self._inbox.slots[_PARAMETER + parameter]

    def _copied(self, name: str) -> Tensor:
        value = self._empty(self._inbox.slots[name])
        self._device.copy(*self._copy_to(value, name))
        return value

    def _copy_to(self, value: Tensor, name: str) -> tuple[int, int, int]:
        return address(value), self._inbox.address(name, self._link), _bytes(self._inbox.slots[name])

    def _empty(self, slot: Slot, shifted: bool = False) -> Tensor:
        dtype = getattr(torch, slot.dtype)
        start = ALIGNMENT * self._shifts.randrange(1, MOST_SHIFTS) if shifted else 0
        block = torch.empty(start + _bytes(slot), dtype=torch.uint8, device=self._device.name)
        return block[start:].view(dtype).view(slot.shape)


def _fills(value: Tensor, slot: Slot) -> bool:
    """Whether the tensor lies in memory as the slot's does."""
    return value.is_contiguous() and str(value.dtype) == f"torch.{slot.dtype}"


def _bytes(slot: Slot) -> int:
    return int(torch.Size(slot.shape).numel()) * getattr(torch, slot.dtype).itemsize


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
