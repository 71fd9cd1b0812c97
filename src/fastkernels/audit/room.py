"""One case audited, where this machine has room for it."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from math import prod

import torch

from fastkernels.audit.admission import audit_case
from fastkernels.errors import MachineError
from fastkernels.loader.inputs import trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.roofline import work
from fastkernels.records import AuditRow, Case, Device
from fastkernels.registry.schema import TaskEntry

# What CUDA's own calls (torch.AcceleratorError) and Triton's (RuntimeError) say: no class tells it.
NO_ROOM = ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory")

# An audit holds about so many float64 copies of a case's arguments, parameters and results: two draws, the
# modules of the oracle and of the exact mistakes, and what lies between. And a process's context and kernels.
COPIES = 5
PROCESS_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Audited:
    """A case and its row, or why there is none."""

    case: Case
    row: AuditRow | None
    no_room: str = ""

    def __str__(self) -> str:
        return f"{self.case.task} {self.case.id}"


def audited(entry: TaskEntry, case: Case, device: Device, seed: int) -> Audited:
    """Without a row where the machine has no room. Any other error is one of the audit and is raised."""
    try:
        return Audited(case, audit_case(entry, case, device, seed))
    except (MachineError, RuntimeError) as error:
        if not _no_room(error):
            raise
        # The first sentence: the next ones list the processes beside this one.
        return Audited(case, None, str(error).splitlines()[0].partition(". ")[0])
    finally:
        _give_back(device)


def needed_bytes(case: Case) -> int:
    """What the audit of a case takes of a device's memory: a guess from its tensors (COPIES)."""
    overlay = Overlay.over_baseline()
    specs = trial_specs(case, build_module(overlay, case, "meta"))
    results = work(case, overlay).written_bytes // getattr(torch, case.dtype).itemsize
    elements = sum(prod(spec.shape) for spec in specs.values()) + results
    return PROCESS_BYTES + COPIES * torch.float64.itemsize * elements


def _no_room(error: Exception) -> bool:
    """Whether it says that this machine has not enough memory for the case, not that something is wrong."""
    by_class = isinstance(error, (MachineError, torch.OutOfMemoryError))
    return by_class or any(text in str(error) for text in NO_ROOM)


def _give_back(device: Device) -> None:
    """The memory of the case before. Modules and closures of a Subject are in reference cycles: it would
    stay until Python collects them, and after a case without room the next ones had none either. The cache
    goes back to the device, whose other processes need it as well."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
