"""What a request judges: jobs of one candidate each, with the cases that it reaches."""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fastkernels import registry
from fastkernels.errors import NotFoundError, UsageError
from fastkernels.judge.verdict import Verdict
from fastkernels.layout import shown
from fastkernels.loader.candidates import CandidateSet, discover, replaced_variants
from fastkernels.loader.digest import files_of
from fastkernels.loader.replay import with_captured
from fastkernels.measure.environment import require_device
from fastkernels.records import CandidateFiles, Case, Contract, Device, Record, Size, default_size
from fastkernels.registry import uses
from fastkernels.registry.schema import TaskEntry
from fastkernels.runner.source_rules import from_source
from fastkernels.settings import candidates_dir, resolve

SELF_TEST = "self-test"
DEFAULT_BUDGET_S = 1.0
_MOST_NAMED = 3  # tasks or candidates in a message
DEFAULT_CONTRACT: dict[str, Contract] = {"cpu": "host", "cuda": "graph"}
CONTRACTS: dict[str, tuple[Contract, ...]] = {"cpu": ("host",), "cuda": ("graph", "eager", "host")}


class KernelsRequest(Record):
    """What `fk kernels` was asked. None: decided from the machine (`resolved`)."""

    targets: tuple[str, ...] = ()
    level: int | None = None
    architecture: str | None = None
    case_glob: str | None = None
    size: Size | None = None
    golden: str | None = None  # a golden folder, whose routing is replayed beside the drawn one
    candidates: tuple[str, ...] = ()  # folders; empty: the user's workspace
    device: Device | None = None
    contract: Contract | None = None
    self_test: bool = False
    providers: bool = False
    budget_s: float | None = None  # of sampling, for each timed case
    fail_fast: bool = False  # the first trial that fails is the last
    timeout_s: float | None = None  # of one phase of a candidate
    compile_check: bool = True
    attribution: bool = True  # on CUDA, who made a candidate's kernels
    track: Literal["open", "authored"] = "open"
    seed: int | None = None  # None: fresh
    reproduce: str | None = None  # where to write the first failure of each candidate in each task

    @classmethod
    def parse(cls, there: Device | None = None, **flags: Any) -> KernelsRequest:
        """From a command's flags, with the user's settings behind them. `there`: the device of the machines
        that judge, where that is not this one. UsageError for flags that exclude each other."""
        if flags["self_test"] and flags["providers"]:
            raise UsageError("--self-test and --providers are two questions: ask one at a time")
        if (flags["self_test"] or flags["providers"]) and flags["candidates"]:
            asked = "--self-test" if flags["self_test"] else "--providers"
            raise UsageError(f"{asked} judges no candidates: leave out --candidates")
        if flags.get("reproduce") and (flags["self_test"] or flags["providers"]):
            raise UsageError("--reproduce is for candidates: it writes scripts that run their files")
        settings = resolve(device=flags.pop("device"), size=flags.pop("size"))
        return cls(**flags, device=settings.device_asked, size=settings.size_asked).resolved(there)

    def resolved(self, there: Device | None = None) -> KernelsRequest:
        """Every default filled in from this machine, or from the device `there`. MachineError for CUDA
        without CUDA."""
        device = there or require_device(self.device)
        if self.track == "authored" and device != "cuda":
            raise UsageError("--track authored needs a CUDA device: kernels have no names on a CPU")
        contract = self.contract or DEFAULT_CONTRACT[device]
        if contract not in CONTRACTS[device]:
            raise UsageError(
                f"--contract {contract} needs a CUDA device; on {device}: {', '.join(CONTRACTS[device])}"
            )
        return self.model_copy(
            update={
                "device": device,
                "contract": contract,
                "size": self.size or default_size(device),
                "budget_s": self.budget_s or DEFAULT_BUDGET_S,
                "seed": secrets.randbits(62) if self.seed is None else self.seed,
            }
        )

    @property
    def sources(self) -> list[Path]:
        """The candidates' task files, for the history."""
        return sorted(file for found in candidate_sets(self) for file in found.files.values())


@dataclass(frozen=True)
class Work:
    """One case, or a verdict that needs no trial."""

    entry: TaskEntry
    case: Case
    settled: Verdict | None = None


@dataclass
class Job:
    """One candidate: what lies over the baseline, or which implementations are forced."""

    name: str
    layers: tuple[Path, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)  # task -> the candidate's file
    implementations: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # task -> kernel -> implementation
    works: list[Work] = field(default_factory=list)
    unavailable: list[tuple[TaskEntry, str]] = field(
        default_factory=list
    )  # implementations that cannot run here
    shadowed: tuple[str, ...] = ()
    # `fk gate` compares two candidates, or two revisions of our own kernels:
    base_layers: tuple[Path, ...] = ()  # what lies over the baseline in the baseline's processes
    source: Path | None = None  # a folder that the candidate's process imports fastkernels from; None: ours
    base_source: Path | None = None  # the same for the baseline's processes

    @property
    def is_candidate(self) -> bool:
        """Whether this is other code than the baseline's own, and not one of its implementations by name."""
        return bool(self.layers or self.source)


def plan(request: KernelsRequest) -> list[Job]:
    """The jobs of a resolved request. UsageError where nothing would be judged, with what to do."""
    size, device = request.size, request.device
    assert size is not None
    assert device is not None
    entries = registry.find_tasks(request.targets, request.level, request.architecture)
    cases = _cases(request, entries, size)
    if not any(cases.values()):
        raise UsageError(_nothing(request, entries, size))
    if request.self_test:
        works = [Work(entry, case) for entry in entries for case in cases[entry.id]]
        return [Job(SELF_TEST, works=works)]
    if request.providers:
        return _providers(entries, cases, device)
    return _candidates(request, entries, cases)


def _cases(request: KernelsRequest, entries: Sequence[TaskEntry], size: Size) -> dict[str, list[Case]]:
    found = {entry.id: registry.cases(entry, size, request.architecture) for entry in entries}
    if request.golden is not None and any(found.values()):
        found = with_captured(found, request.golden)
    return {task: registry.matching(cases, request.case_glob) for task, cases in found.items()}


# ---------------------------------------------------------------- candidates


def _candidates(
    request: KernelsRequest, entries: Sequence[TaskEntry], cases: dict[str, list[Case]]
) -> list[Job]:
    sets = candidate_sets(request)
    # Asked for a target, a candidate below it counts; otherwise only what the candidates themselves replace.
    through = bool(request.targets or request.level)
    jobs = []
    for found in sets:
        works = [work for entry in entries for work in _works(found, entry, cases[entry.id], through)]
        if works:
            jobs.append(Job(found.name, found.layers, found.files, works=works, shadowed=found.shadowed()))
    judged = {work.entry.id for job in jobs for work in job.works}
    named = {
        entry.id: _told(entry.id, entry.variants)
        for target in request.targets
        if not any(c in target for c in "*?[")
        for entry in registry.find_tasks([target], request.level, request.architecture)
    }
    left_out = [told for task, told in named.items() if task not in judged and cases[task]]
    if left_out or not jobs:
        wanted = left_out or [_told(entry.id, entry.variants) for entry in entries]
        held = {
            _told(t, replaced_variants(f, registry.task(t))) for found in sets for t, f in found.files.items()
        }
        where = ", ".join(request.candidates) or str(candidates_dir())
        where += f", only for {_first(sorted(held))}" if held else ""
        raise UsageError(
            f"No candidate for {_first(wanted)} in {where}. "
            f"Write one (fk stubs --target {wanted[0]}), name its folder (--candidates DIR), compare "
            "implementations (--providers), or judge the baseline against itself (--self-test)"
        )
    return jobs


def _told(task: str, variants: Iterable[str]) -> str:
    """`L1/glu`, or `L1/glu:gelu` where it is not all of the task."""
    some = sorted(set(variants) & registry.task(task).variants.keys())
    return task if len(some) in (0, len(registry.task(task).variants)) else f"{task}:{','.join(some)}"


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def out_of_reach(sets: Sequence[CandidateSet], judged: Container[str]) -> Iterator[str]:
    """What of the candidates is not judged, line by line. `judged`: names of those that are."""
    for file in (file for found in sets for file in found.unknown):
        yield f"{shown(file)} is no registered task and is not judged. See: fk check"
    if idle := [found.name for found in sets if found.name not in judged]:
        yield f"not judged, since nothing that they replace was asked for: {_first(idle)}"


def candidate_sets(request: KernelsRequest) -> list[CandidateSet]:
    """The candidates of a request: those that were named, or what lies in the user's workspace."""
    if request.self_test or request.providers:
        return []
    if request.candidates:
        return discover(request.candidates)
    try:
        return discover([candidates_dir()])
    except UsageError:
        return []  # an empty workspace: the caller says for which targets there is nothing


def judged_files(request: KernelsRequest) -> tuple[CandidateFiles, ...]:
    """What the candidates of a request hold now."""
    return tuple(map(files_of, candidate_sets(request)))


def _works(found: CandidateSet, entry: TaskEntry, cases: list[Case], through: bool) -> Iterator[Work]:
    """The cases of a task that a candidate changes, some of them settled from the source alone."""
    file = found.files.get(entry.id)
    below = (uses.reached(entry.id) - {entry.id}) & set(found.files)
    if file is None and not (below and through):
        return
    variants = replaced_variants(file, registry.task(entry.id)) if file else {}  # also those not asked for
    settled = from_source(found, entry.id)
    for case in cases:
        own = file is not None and (case.variant in variants or not variants)
        if own or (below and through):
            yield Work(entry, case, settled)


# ---------------------------------------------------------------- implementations


def _providers(entries: Sequence[TaskEntry], cases: dict[str, list[Case]], device: str) -> list[Job]:
    """One job for each name of an implementation, over the tasks that call a kernel which has it."""
    from fastkernels import kernels

    jobs: dict[str, Job] = {}
    for entry in entries:
        for name in dict.fromkeys(
            name for kernel in entry.kernels for name in kernels.registered[kernel].names
        ):
            having = [kernels.registered[k] for k in entry.kernels if name in kernels.registered[k].names]
            job = jobs.setdefault(name, Job(f"impl:{name}"))
            reasons = [
                i.not_here(device) for kernel in having if (i := kernel.implementation(name)) is not None
            ]
            if reason := next((r for r in reasons if r), None):
                job.unavailable.append((entry, reason))
                continue
            job.implementations[entry.id] = {kernel.name: name for kernel in having}
            job.works += [Work(entry, case) for case in cases[entry.id]]
    if not jobs:
        raise UsageError(
            f"{', '.join(e.id for e in entries)}: no kernels of its own to compare. "
            "--providers is for tasks that call kernels (level 1); see fk list tasks"
        )
    return list(jobs.values())


def _nothing(request: KernelsRequest, entries: Sequence[TaskEntry], size: Size) -> str:
    if not entries:
        return str(registry.no_task(request.targets, request.level, request.architecture))
    if request.case_glob is not None:
        every = _cases(request.model_copy(update={"case_glob": None}), entries, size)
        known = [case.id for cases in every.values() for case in cases]
        return str(NotFoundError("case", request.case_glob, known, f"fk show {entries[0].id}"))
    return (
        f"{', '.join(entry.id for entry in entries)}: no cases of size {size}. See: fk show {entries[0].id}"
    )
