"""Which cases `fk tune` times, and in which order: a run that ends early has some of every task.

Tasks take turns. Of a task the phases take turns (prefill, decode, ...), and of a phase the largest case of
each architecture and variant comes first, then the second largest of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from math import prod

from fastkernels import registry
from fastkernels.errors import NotFoundError, UsageError
from fastkernels.records import Case, Device, Record, Size, TensorSpec, Untimed, default_size
from fastkernels.registry.schema import TaskEntry

LEVELS = (1, 2)


class TuneRequest(Record):
    """What `fk tune` was asked."""

    targets: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()  # empty: all
    case_glob: str | None = None
    device: Device
    size: Size | None = None  # None: by the device
    budget_s: float = 0.2  # of readings, for each case
    seconds: float | None = None  # of the whole run
    first_call_s: float = 20.0  # most time for a first call, in which code is compiled
    processes: int = 1  # that make first calls beside each other


class Planned(Record):
    cases: tuple[Case, ...]  # in the order in which they are timed
    untimed: tuple[Untimed, ...]  # what cannot be timed in one process


def plan(request: TuneRequest) -> Planned:
    """The timed cases of tasks that call kernels themselves: the others are made of these. UsageError where
    there are none."""
    size = request.size or default_size(request.device)
    found: list[list[Case]] = []
    untimed: list[Untimed] = []
    names: dict[str, None] = {}
    for entry in _entries(request):
        names[entry.id] = None
        mine = [case for case in _cases(entry, request.architectures, size) if case.timed]
        mine = registry.matching(mine, request.case_glob)
        several = [case for case in mine if case.ranks > 1]
        untimed += [Untimed(task=c.task, case=c.id, why=f"is of {c.ranks} ranks") for c in several]
        found.append(_ordered([case for case in mine if case.ranks == 1]))
    cases = tuple(_in_turns(found))
    if not cases:
        if request.case_glob is not None and names:
            known = [c.id for e in _entries(request) for c in _cases(e, request.architectures, size)]
            raise NotFoundError("case", request.case_glob, known, f"fk show {next(iter(names))}")
        told = ", ".join(names) or "these tasks"
        raise UsageError(f"{told}: no timed {size} cases of levels 1 and 2 that call kernels themselves")
    return Planned(cases=cases, untimed=tuple(untimed))


def _entries(request: TuneRequest) -> list[TaskEntry]:
    of: dict[str, TaskEntry] = {}
    for architecture in request.architectures or (None,):
        entries = registry.find_tasks(request.targets, None, architecture)
        if not entries:
            raise registry.no_task(request.targets, None, architecture)
        of |= {entry.id: entry for entry in entries if entry.level in LEVELS and entry.kernels}
    return [of[task] for task in sorted(of)]


def _cases(entry: TaskEntry, architectures: Sequence[str], size: Size) -> list[Case]:
    every = {
        case.id: case
        for architecture in architectures or (None,)
        for case in registry.cases(entry, size, architecture)
    }
    return list(every.values())


def _ordered(cases: Iterable[Case]) -> list[Case]:
    groups: dict[tuple[str, str, str], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.provenance.phase, case.variant, case.provenance.architecture].append(case)
    phases: dict[str, list[tuple[int, int, Case]]] = defaultdict(list)
    for (phase, *_), members in groups.items():
        members.sort(key=_elements, reverse=True)
        phases[phase] += [(place, -_elements(case), case) for place, case in enumerate(members)]
    of_phases = [[case for *_, case in sorted(found, key=lambda one: one[:2])] for found in phases.values()]
    return list(_in_turns(of_phases))


def _in_turns(several: Sequence[Sequence[Case]]) -> Iterator[Case]:
    for turn in zip_longest(*several):
        yield from (case for case in turn if case is not None)


def _elements(case: Case) -> int:
    return sum(prod(spec.shape) for spec in case.inputs.values() if isinstance(spec, TensorSpec))
