"""`run_audit`: the cases that a request names, task by task; where it names none, a few of each task.

report = run_audit(AuditRequest(targets=("rms_norm",)))
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from fastkernels import registry
from fastkernels.audit.admission import admit
from fastkernels.audit.lanes import beside
from fastkernels.audit.room import Audited, audited, collecting_cases_alone
from fastkernels.errors import FileFormatError, NotFoundError, UsageError
from fastkernels.measure.environment import environment, require_device
from fastkernels.progress import Progress
from fastkernels.records import AuditReport, AuditRow, AuditTask, Case, Device, Record, Size, default_size
from fastkernels.registry.schema import TaskEntry
from fastkernels.settings import resolve

Found = list[tuple[TaskEntry, Case]]


class AuditRequest(Record):
    """What `fk audit` was asked. None of `device`: decided from the machine (`resolved`). None of `size`: as
    `default_size` for operations and fusions, and tiny for blocks and models, whose parts are audited at the
    other."""

    targets: tuple[str, ...] = ()
    level: int | None = None
    architecture: str | None = None
    case_glob: str | None = None
    size: Size | None = None
    device: Device | None = None
    seed: int = 0  # fixed: admission is a fact about a case, and has to come out the same tomorrow
    processes: int = 1  # cases audited beside each other
    timeout_s: float = 1200  # for each of those: one that hangs ends no audit
    resume: Path | None = None  # a report whose cases are left out

    @classmethod
    def parse(cls, **flags: Any) -> AuditRequest:
        """From a command's flags, with the user's settings behind them."""
        settings = resolve(device=flags.pop("device"), size=flags.pop("size"))
        return cls(**flags, device=settings.device_asked, size=settings.size_asked).resolved()

    def resolved(self) -> AuditRequest:
        """Every default filled in from this machine. MachineError for CUDA without CUDA."""
        return self.model_copy(update={"device": require_device(self.device)})

    def size_of(self, entry: TaskEntry) -> Size:
        """Of a task's cases, once this is `resolved`."""
        assert self.device
        return self.size or (default_size(self.device) if entry.level < 3 else "tiny")


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
    progress(Progress(0, len(found), "starting"))
    ended: list[Audited] = []
    complete = True
    try:
        with contextlib.closing(_audited(found, request.device, request)) as cases:
            for done in cases:
                ended.append(done)
                progress(Progress(len(ended), len(found), f"{done} audited"))
    except KeyboardInterrupt:
        complete = False
    places = {(case.task, case.id): place for place, (_, case) in enumerate(found)}
    ended.sort(key=lambda done: places[done.case.task, done.case.id])
    rows = tuple(done.row for done in ended if done.row)
    return AuditReport(
        schema=1,
        environment=environment(request.device),
        request=request.model_dump(mode="json"),
        tasks=_tasks(found, rows),
        rows=rows,
        unaudited=tuple(f"{done}: {done.reason}" for done in ended if not done.row),
        wall_s=time.monotonic() - begin,
        complete=complete,
    )


def _audited(found: Found, device: Device, request: AuditRequest) -> Generator[Audited]:
    if request.processes > 1:
        yield from beside(found, device, request.seed, request.processes, request.timeout_s)
    else:
        with collecting_cases_alone():
            yield from (audited(entry, case, device, request.seed) for entry, case in found)


def _cases(request: AuditRequest) -> Found:
    entries = registry.find_tasks(request.targets, request.level, request.architecture)
    found = [
        (entry, case)
        for entry in entries
        for case in selected(entry, request.size_of(entry), request.architecture, request.case_glob)
    ]
    if found and request.resume is not None:
        audited_before = _rows(request.resume)
        left = [pair for pair in found if (pair[1].task, pair[1].id) not in audited_before]
        if not left:
            raise UsageError(f"{request.resume} has all {len(found)} cases: nothing is left to audit.")
        return left
    if found:
        return found
    if not entries:
        raise registry.no_task(request.targets, request.level, request.architecture)
    if request.case_glob is not None:
        known = [
            case.id
            for entry in entries
            for case in registry.cases(entry, request.size_of(entry), request.architecture)
        ]
        raise NotFoundError("case", request.case_glob, known, f"fk show {entries[0].id}")
    names = ", ".join(entry.id for entry in entries)
    sizes = " or ".join(sorted({request.size_of(entry) for entry in entries}))
    raise UsageError(f"{names}: no cases of size {sizes}. See: fk show {entries[0].id}")


def selected(
    entry: TaskEntry, size: Size, architecture: str | None = None, case_glob: str | None = None
) -> list[Case]:
    """The cases of a task that are audited: all that a glob names. Without one the first of each variant, as
    wrong kernels are made from the variant's code; and all of a sampler, as one case's draws tell little."""
    found = registry.cases(entry, size, architecture, case_glob)
    if case_glob is not None or entry.rule == "sampler":
        return found
    firsts: dict[str, Case] = {}
    for case in found:
        firsts.setdefault(case.variant, case)
    return list(firsts.values())


def _rows(report: Path) -> set[tuple[str, str]]:
    """Task and case of each row of an audit's report, or of a summary of such."""
    try:
        return {(row["task"], row["case"]) for row in json.loads(report.read_text())["rows"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"no report of an audit ({type(error).__name__}: {error}). Name one of fk audit --json"
        raise FileFormatError(report, "", problem) from error


def _tasks(found: Found, rows: Sequence[AuditRow]) -> tuple[AuditTask, ...]:
    audited = dict.fromkeys(entry.id for entry, _ in found if any(row.task == entry.id for row in rows))
    return tuple(admit(task, [row for row in rows if row.task == task]) for task in audited)
