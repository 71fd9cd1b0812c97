"""Fresh inputs for every call: from a link's part of the judge's inbox into the tensors that it works on.

Arguments, caches and the step's tensors lie in the worker's own memory, or in what the judge lends, where it
brings them itself; at the same addresses in most iterations and at new ones in some (`move`). Parameters lie
where the module keeps them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fastkernels.loader.materialize import load_parameters, parameters
from fastkernels.runner.device import WorkerDevice
from fastkernels.runner.results import address
from fastkernels.runner.shared import ALIGNMENT, MOST_SHIFTS, Attached, Slot

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
