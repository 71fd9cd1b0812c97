"""`run_audit`: every case that a request names, task by task.

report = run_audit(AuditRequest(targets=("rms_norm",)))
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fastkernels import registry
from fastkernels.audit.admission import admit, audit_case
from fastkernels.errors import MachineError, NotFoundError, UsageError
from fastkernels.measure.environment import environment, require_device
from fastkernels.records import AuditReport, AuditRow, AuditTask, Case, Device, Record, Size, default_size
from fastkernels.registry.schema import TaskEntry
from fastkernels.settings import resolve

# What CUDA's own calls (torch.AcceleratorError) and Triton's (RuntimeError) say: no class tells it.
NO_ROOM = ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory")


class AuditRequest(Record):
    """What `fk audit` was asked. None: decided from the machine (`resolved`)."""

    targets: tuple[str, ...] = ()
    level: int | None = None
    architecture: str | None = None
    case_glob: str | None = None
    size: Size | None = None
    device: Device | None = None
    seed: int = 0  # fixed: admission is a fact about a case, and has to come out the same tomorrow

    @classmethod
    def parse(cls, **flags: Any) -> AuditRequest:
        """From a command's flags, with the user's settings behind them."""
        settings = resolve(device=flags.pop("device"), size=flags.pop("size"))
        return cls(**flags, device=settings.device_asked, size=settings.size_asked).resolved()

    def resolved(self) -> AuditRequest:
        """Every default filled in from this machine. MachineError for CUDA without CUDA."""
        device = require_device(self.device)
        size = self.size or default_size(device)
        return self.model_copy(update={"device": device, "size": size})


@dataclass(frozen=True)
class Progress:
    """Cases done and in all, and which is next."""

    done: int
    total: int
    text: str


def run_audit(
    request: AuditRequest, progress: Callable[[Progress], None] = lambda progress: None
) -> AuditReport:
    """Audit what the request names. After Ctrl-C the rows so far, `complete=False`.

    UsageError: no case is named. MachineError: the device is not there.
    """
    request = request.resolved()
    assert request.device
    begin = time.monotonic()
    found = _cases(request)
    rows: list[AuditRow] = []
    unaudited: list[str] = []
    complete = True
    try:
        for done, (entry, case) in enumerate(found):
            progress(Progress(done, len(found), f"{case.task} {case.id}"))
            try:
                rows.append(audit_case(entry, case, request.device, request.seed))
            except (MachineError, RuntimeError) as error:
                if not _no_room(error):
                    raise
                # The first sentence: the next ones list the processes beside this one.
                reason = str(error).splitlines()[0].partition(". ")[0]
                unaudited.append(f"{case.task} {case.id}: {reason}")
            _give_back(request.device)
    except KeyboardInterrupt:
        complete = False
    return AuditReport(
        schema=1,
        environment=environment(request.device),
        request=request.model_dump(mode="json"),
        tasks=_tasks(found, rows),
        rows=tuple(rows),
        unaudited=tuple(unaudited),
        wall_s=time.monotonic() - begin,
        complete=complete,
    )


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


def _cases(request: AuditRequest) -> list[tuple[TaskEntry, Case]]:
    entries = registry.find_tasks(request.targets, request.level, request.architecture)
    found = [
        (entry, case)
        for entry in entries
        for case in registry.cases(entry, request.size, request.architecture, request.case_glob)
    ]
    if found:
        return found
    if not entries:
        raise registry.no_task(request.targets, request.level, request.architecture)
    if request.case_glob is not None:
        known = [
            case.id for entry in entries for case in registry.cases(entry, request.size, request.architecture)
        ]
        raise NotFoundError("case", request.case_glob, known, f"fk show {entries[0].id}")
    names = ", ".join(entry.id for entry in entries)
    raise UsageError(f"{names}: no cases of size {request.size}. See: fk show {entries[0].id}")


def _tasks(found: list[tuple[TaskEntry, Case]], rows: list[AuditRow]) -> tuple[AuditTask, ...]:
    audited = dict.fromkeys(entry.id for entry, _ in found if any(row.task == entry.id for row in rows))
    return tuple(admit(task, [row for row in rows if row.task == task]) for task in audited)
