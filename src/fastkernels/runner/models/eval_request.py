"""What `fk eval` was asked: the candidate, the models, and of each the workloads that it can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastkernels import registry
from fastkernels.errors import NotFoundError, UsageError
from fastkernels.layout import shown
from fastkernels.loader.candidates import CandidateSet, discover, replaced_variants
from fastkernels.measure.environment import require_device
from fastkernels.records import Device, Size, default_size
from fastkernels.registry.schema import Architecture
from fastkernels.registry.workloads import Workload
from fastkernels.runner.source_rules import imported_by
from fastkernels.settings import candidates_dir, resolve

if TYPE_CHECKING:
    from fastkernels.loader.weights import ModelSource


@dataclass(frozen=True)
class EvalRequest:
    """The arguments of `fk eval` after all defaults."""

    models: tuple[str, ...]
    candidates: CandidateSet | None  # None: self-test
    size: Size
    device: Device
    suite: str
    workloads: tuple[str, ...] = ()  # empty: the suite's
    category: str | None = None
    rounds: int | None = None
    eager: bool = False
    seed: int | None = None
    timeout_s: float | None = None  # of a side's start, and of each of its calls
    tp: int = 1  # ranks of each engine, a GPU or a process for each
    ep: int = 1  # over which whole experts are split: 1, or as many

    @classmethod
    def parse(
        cls,
        *,
        models: Sequence[str] = (),
        candidate_paths: Sequence[str] = (),
        self_test: bool = False,
        size: Size | None = None,
        device: Device | None = None,
        suite: str | None = None,
        workloads: Sequence[str] = (),
        category: str | None = None,
        rounds: int | None = None,
        eager: bool = False,
        seed: int | None = None,
        timeout_s: float | None = None,
        tp: int = 1,
        ep: int = 1,
        there: Device | None = None,
    ) -> EvalRequest:
        """Fill in what was not given: from the settings, the registry and the machine; `there`: the device of
        the machines that judge, where that is not this one. UsageError, MachineError.
        """
        if ep not in (1, tp):
            raise UsageError(f"--ep {ep}: experts are split over the ranks of --tp {tp}, all of them or none")
        settings = resolve(device=device, size=size, suite=suite)
        machine = there or require_device(settings.device_asked)
        if self_test and candidate_paths:
            raise UsageError("--self-test judges the baseline against itself: leave out --candidates")
        # A misspelt name is told before a missing candidate is.
        registry.find_architectures([model for model in models if not _is_checkpoint(model)])
        return cls(
            models=tuple(models),
            candidates=None if self_test else _one_set(candidate_paths),
            size=settings.size_asked or default_size(machine),
            device=machine,
            suite=settings.suite,
            workloads=tuple(workloads),
            category=category,
            rounds=rounds,
            eager=eager,
            seed=seed,
            timeout_s=timeout_s,
            tp=tp,
            ep=ep,
        )

    @property
    def sources(self) -> list[Path]:
        """The candidates' files, for the history."""
        return sorted(self.candidates.files.values()) if self.candidates else []

    def described(self) -> dict[str, Any]:
        """The request as a report stores it."""
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}
        return {**plain, "candidates": self.candidates.name if self.candidates else "self-test"}


@dataclass(frozen=True)
class Target:
    """A model to evaluate: what LLM() loads, and the facts of its architecture."""

    model: str
    architecture: Architecture
    config: str
    hf_config: dict[str, Any]
    checkpoint: Path | None = None  # its folder, where it has one


def plan(
    request: EvalRequest, say: Callable[[str], None]
) -> tuple[list[tuple[Target, list[Workload]]], dict[str, UsageError]]:
    """The models of the request with their workloads; and those that nothing of it can be asked of, which is
    known without them: the others are evaluated, and scored. `say` hears of these, and of what the models
    leave out of the candidate. UsageError where no model is left, or nothing of the candidate."""
    targets, skipped = _targets(request)
    planned = []
    for target in targets:
        named = _named_workloads(request, target.architecture)
        try:
            _require_ranks(request, target)
            planned.append((target, _workloads(request, target, named)))
        except UsageError as error:
            skipped[target.model] = error
    if not planned:
        raise next(iter(skipped.values()))
    for why in skipped.values():
        say(f"skipped: {why}")
    for line in _out_of_reach(request, [target for target, _ in planned]):
        say(line)
    return planned, skipped


def _require_ranks(request: EvalRequest, target: Target) -> None:
    """UsageError where the model cannot be split over as many ranks."""
    if request.tp == 1:
        return
    from fastkernels.runner.models import placement

    try:
        placement.require_split(source_of(target), request.tp, request.ep > 1, request.device)
    except UsageError as error:
        raise UsageError(f"{target.model}: {error}") from error


def _targets(request: EvalRequest) -> tuple[list[Target], dict[str, UsageError]]:
    """Registered architectures by id or glob; everything else is a folder or a Hugging Face id."""
    patterns = request.models or registry.suite(request.suite).architectures
    of_category = {entry.id for entry in registry.find_architectures((), request.category)}
    targets: dict[str, Target] = {}
    skipped: dict[str, UsageError] = {}
    for pattern in patterns:
        if _is_checkpoint(pattern):
            targets[pattern] = _from_checkpoint(pattern)
            continue
        for entry in registry.find_architectures([pattern]):
            if entry.id not in of_category:
                continue
            if config := entry.default_config.get(request.size):
                targets[entry.id] = Target(entry.id, entry, config, entry.configs[config].config)
            else:
                problem = f"it has no configuration of size {request.size}. See: fk show {entry.id}"
                skipped[entry.id] = UsageError(f"{entry.id}: {problem}")
    if not targets and not skipped:
        known = [entry.id for entry in registry.architectures()]
        words = " ".join([*patterns, *([request.category] if request.category else [])])
        raise NotFoundError("architecture", words, known, "fk list architectures")
    return list(targets.values()), skipped


def _out_of_reach(request: EvalRequest, targets: Sequence[Target]) -> Iterator[str]:
    """What the models leave out of the candidate, as far as sources and registered cases tell, line by line.
    UsageError where that is all of it."""
    if (found := request.candidates) is None:
        return
    for file in found.unknown:
        yield f"{shown(file)} is no registered task and is not used. See: fk check"
    reached = imported_by(found, {target.model: target.architecture for target in targets})
    for target in targets:
        tasks = reached[target.model]
        if missing := [task for task in found.files if task not in tasks]:
            nothing = "" if tasks else ": no coverage"
            yield f"{target.model} never imports {', '.join(missing)}{nothing}"
        for entry in map(registry.task, tasks):
            own = replaced_variants(found.files[entry.id], entry)
            cases = registry.cases(entry, request.size, target.architecture.id)
            if cases and own and not any(case.variant in own for case in cases):
                used = ", ".join(dict.fromkeys(case.variant for case in cases))
                yield f"{target.model} has cases of {entry.id}:{used}, the candidate has {', '.join(own)}"


def _is_checkpoint(model: str) -> bool:
    """Whether it names a folder or a Hugging Face id, not a registered architecture."""
    return "/" in model or Path(model).is_dir()


def _from_checkpoint(model: str) -> Target:
    from fastkernels.loader.weights import find

    source = find(model)
    return Target(model, source.architecture, source.name, source.config, source.folder)


def _named_workloads(request: EvalRequest, architecture: Architecture) -> list[Workload]:
    """The request's, else the suite's for the architecture, at the request's size."""
    known = {workload.name: workload for workload in registry.workloads(size=request.size)}
    names = request.workloads or registry.suite(request.suite).names(architecture, request.size)
    for name in names:
        if name not in known:
            raise NotFoundError("workload", name, known, "fk list workloads")
    return [known[name] for name in names]


def _workloads(request: EvalRequest, target: Target, named: Sequence[Workload]) -> list[Workload]:
    """Those of `named` that the model can be asked. UsageError where there is none, or one is too long."""
    architecture = target.architecture
    known = {*architecture.workloads, *architecture.unscored}
    chosen = [w for w in named if w.name in known and w.answer == architecture.correctness.kind]
    if not chosen:
        own = ", ".join((*architecture.workloads, *architecture.unscored))
        raise UsageError(
            f"{target.model}: its workloads are {own}, and none of them was asked for (--suite, --workload). "
            f"See: fk show {architecture.id}"
        )
    longest = architecture.correctness.positions(request.size, chosen)
    if longest > (limit := target.hf_config.get(architecture.positions, longest)):
        raise UsageError(
            f"{target.model}: it has {limit} positions, the workloads need {longest}: "
            f"choose shorter ones with --workload, or another --size"
        )
    return chosen


def _one_set(paths: Sequence[str | Path]) -> CandidateSet:
    """The single candidate set under `paths`; a score belongs to one overlay."""
    found = discover(paths or [candidates_dir()])
    if len(found) != 1:
        names = ", ".join(candidate.name for candidate in found)
        raise UsageError(
            f"fk eval scores one set of candidates, found {len(found)}: {names}. "
            "Give one --candidates DIR, or stack several as top:below"
        )
    if not found[0].files:
        raise UsageError(f"{found[0].name} replaces no registered task. See: fk check, fk list tasks")
    return found[0]


def source_of(target: Target) -> ModelSource:
    from fastkernels.loader.weights import find

    is_registered = target.model == target.architecture.id
    return find(target.model, config=target.config) if is_registered else find(target.model)
