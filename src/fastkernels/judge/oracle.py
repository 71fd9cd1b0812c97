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
# much as the largest of them takes is left for what lies between: they are widened, and moved, one by one. A
# second look (conditioning.py) has two more in their own dtype, those of plain arithmetic and moved ones.
_OF_ARGUMENTS = 3
_WIDE = (torch.float32, torch.float64)


class Oracle:
    """Built once for a case; called with the tensors of one iteration."""

    def __init__(self, case: Case, overlay: Overlay, device: torch.device | str) -> None:
        self._case, self._overlay, self._device = case, overlay, torch.device(device)
        self._residents: dict[torch.dtype | None, Resident] = {}
        self._chosen: torch.dtype | None = None
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
        """By the first call, for all: an oracle that changed its dtype would be another one."""
        self._chosen = self._chosen or self._affordable(_Sizes.of(tensors))
        return self._chosen

    def _affordable(self, sizes: _Sizes) -> torch.dtype:
        wide = sizes.parameters + sizes.largest + _OF_ARGUMENTS * sizes.arguments
        own = sizes.own if None in self._residents else 2 * sizes.own
        needed = wide + own
        free = allocatable_bytes(self._device)
        if free is None or needed <= free:
            return torch.float64
        if getattr(torch, self._case.dtype) in _WIDE or wide // 2 + own > free:
            raise MachineError(
                f"The oracle of case {self._case.id} needs about {needed / 2**30:.1f} GiB, "
                f"{free / 2**30:.1f} GiB are free "
                f"on {self._device}. Choose smaller cases: --case or --size tiny"
            )
        self.note = (
            f"oracle in float32: float64 needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        )
        return torch.float32


class _Sizes(NamedTuple):
    """Bytes in float64 of all parameters, of the largest and of the arguments; `own`: of the parameters in
    their own dtype. Of what is floating-point."""

    parameters: int
    largest: int
    arguments: int
    own: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> _Sizes:
        floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        parameters = [tensor for name, tensor in floats.items() if name.startswith("param.")]
        wide = [torch.float64.itemsize * tensor.numel() for tensor in parameters]
        everything = torch.float64.itemsize * sum(tensor.numel() for tensor in floats.values())
        own = sum(tensor.nbytes for tensor in parameters)
        return cls(sum(wide), max(wide, default=0), everything - sum(wide), own)


def _copy(tensor: Tensor, dtype: torch.dtype | None, device: torch.device) -> Tensor:
    """A copy in `dtype` (None: its own); integers and masks keep theirs. Never the caller's memory: a task
    may mutate it."""
    if dtype is not None and tensor.is_floating_point():
        return tensor.detach().to(device=device, dtype=dtype, copy=True)
    return tensor.detach().to(device=device, copy=True)
