"""The oracle: the baseline's module tree with every kernel forced to `reference`, run in float64.

    oracle = Oracle(case, overlay, device)
    truth = oracle(tensors)         # the trial's tensors in their own dtypes; outputs by name, in float64
    plain = oracle.plain(tensors)   # the same modules and kernels in the dtypes of the trial

Where float64 copies of the trial do not fit into the free memory the oracle runs in float32 and says so
(`oracle.note`); where the case itself is float32 or wider, that is an error, because it would compare a dtype
with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.errors import MachineError
from fastkernels.free_memory import allocatable_bytes
from fastkernels.kernels import base as kernels
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.resident import Resident
from fastkernels.records import Case

# Of arguments a call holds their copies, the outputs and the largest intermediates: measured as under 3x for
# every Llama task; the reference attention works in chunks. Of parameters the module has one copy, and as
# much as the largest of them takes is left for what lies between: they are widened, and moved, one by one.
_OF_ARGUMENTS = 3
_WIDE = (torch.float32, torch.float64)


class Oracle:
    """Built once for a case; called with the tensors of one iteration."""

    def __init__(self, case: Case, overlay: Overlay, device: torch.device | str) -> None:
        self._case, self._overlay, self._device = case, overlay, torch.device(device)
        self._residents: dict[torch.dtype | None, Resident] = {}
        self._elements: _Elements | None = None
        self.note: str | None = None

    def __call__(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs and mutated arguments for these tensors, which stay as they are."""
        return self._run(tensors, self._dtype(tensors))

    def plain(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What plain arithmetic in the case's dtype makes of them: so wrong may a right kernel be. States and
        tables are as the module declares them, in float32: a right kernel does not round them."""
        return self._run(tensors, None)

    def resident(self, dtype: torch.dtype | None) -> Resident:
        """The modules in `dtype`; None: as the case has them. There is one wide copy of the parameters at a
        time."""
        if dtype not in self._residents:
            self._residents = {kept: self._residents[kept] for kept in self._residents if kept is None}
            module = build_module(self._overlay, self._case, self._device, dtype=dtype)
            self._residents[dtype] = Resident(module)
        return self._residents[dtype]

    def _run(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
        resident = self.resident(dtype)
        resident.load(tensors)  # which widens parameters: no second wide copy is needed
        copies = {
            name: _copy(tensors[name], dtype, self._device)
            for name in tensors
            if not name.startswith("param.")
        }
        with torch.no_grad(), kernels.use("reference"):
            outputs = bind(resident.module, self._case, copies, load=False).invoke()
        return {name: output.detach() for name, output in outputs.items()}

    def _dtype(self, tensors: Mapping[str, Tensor]) -> torch.dtype:
        if self._elements is None:
            self._elements = _Elements.of(tensors)
        # A module that is there already needs no second place: one call like the other, or none.
        parameters = 0 if torch.float64 in self._residents else self._elements.parameters
        wide = parameters + self._elements.largest + _OF_ARGUMENTS * self._elements.arguments
        needed = torch.float64.itemsize * wide
        free = allocatable_bytes(self._device)
        if free is None or needed <= free:
            return torch.float64
        if getattr(torch, self._case.dtype) in _WIDE or needed // 2 > free:
            raise MachineError(
                f"The oracle of case {self._case.id} needs about {needed / 2**30:.1f} GiB, "
                f"{free / 2**30:.1f} GiB are free "
                f"on {self._device}. Choose smaller cases: --case or --size tiny"
            )
        self.note = (
            f"oracle in float32: float64 needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        )
        return torch.float32


class _Elements(NamedTuple):
    """How many that are floating-point: of all parameters, of the largest, and of the arguments."""

    parameters: int
    largest: int
    arguments: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> _Elements:
        floats = {name: t.numel() for name, t in tensors.items() if t.is_floating_point()}
        of_parameters = [size for name, size in floats.items() if name.startswith("param.")]
        parameters = sum(of_parameters)
        return cls(parameters, max(of_parameters, default=0), sum(floats.values()) - parameters)


def _copy(tensor: Tensor, dtype: torch.dtype | None, device: torch.device) -> Tensor:
    """A copy in `dtype` (None: its own); integers and masks keep theirs. Never the caller's memory: a task
    may mutate it."""
    if dtype is not None and tensor.is_floating_point():
        return tensor.detach().to(device=device, dtype=dtype, copy=True)
    return tensor.detach().to(device=device, copy=True)
