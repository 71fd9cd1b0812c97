"""One case audited, where this machine has room for it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch

from fastkernels.audit.admission import audit_case
from fastkernels.errors import MachineError
from fastkernels.loader.inputs import trial_specs
from fastkernels.loader.materialize import build_module, mutable_names
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.roofline import work
from fastkernels.measure.room import in_short, is_the_machines
from fastkernels.records import AuditRow, Case, Device
from fastkernels.registry.schema import TaskEntry

# Float64 copies that an audit holds at most: of a parameter (in 16 bits) the oracle's, the baseline's, two
# draws and the two before them; one more of the largest tensor and a quarter, while it is moved and rounded;
# of an argument or a result those that are compared, as seen on an H200, and of what a call changes two more,
# since each call has its own.
OF_PARAMETERS, OF_LARGEST, OF_OTHERS, OF_CHANGED = 2.25, 1.25, 6, 2


@dataclass(frozen=True, slots=True)
class Audited:
    """A case and its row, or why there is none."""

    case: Case
    row: AuditRow | None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.case.task} {self.case.id}"


def audited(entry: TaskEntry, case: Case, device: Device, seed: int) -> Audited:
    """Without a row where the machine has no room. Any other error is one of the audit and is raised."""
    try:
        return Audited(case, audit_case(entry, case, device, seed))
    except (MachineError, RuntimeError) as error:
        if not is_the_machines(error):
            raise
        return Audited(case, None, in_short(error))
    finally:
        _give_back(device)


def needed_bytes(entry: TaskEntry, case: Case) -> int:
    """What the audit of a case takes of a device's memory, beside its process: a guess from its tensors."""
    overlay = Overlay.over_baseline()
    specs = trial_specs(case, build_module(overlay, case, "meta"))
    sizes = {name: prod(spec.shape) for name, spec in specs.items()}
    parameters = sum(size for name, size in sizes.items() if name.startswith("param."))
    results = work(case, overlay).written_bytes // getattr(torch, case.dtype).itemsize
    changed = sum(sizes[name] for name in mutable_names(entry.mutates, specs))
    others = sum(sizes.values()) - parameters + results
    wide = OF_PARAMETERS * parameters + OF_LARGEST * max(sizes.values())
    wide += OF_OTHERS * others + OF_CHANGED * changed
    return int(torch.float64.itemsize * wide)


@contextlib.contextmanager
def collecting_cases_alone() -> Iterator[None]:
    """In the body Python's collector leaves alone what there is now: to look through all that is imported
    took as long, after every case, as a small case."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _give_back(device: Device) -> None:
    """The memory of the case before. Modules and closures of a Subject are in reference cycles: it would
    stay until Python collects them, and after a case without room the next ones had none either. The cache
    goes back to the device, whose other processes need it as well."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
