"""Tier 3: which models a request means, one trial for each, and the report with its MacroEval."""

from __future__ import annotations

import contextlib
import hashlib
import random
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastkernels import registry
from fastkernels.errors import FastKernelsError, NotFoundError, UsageError
from fastkernels.layout import shown
from fastkernels.loader.candidates import CandidateSet, discover, replaced_variants
from fastkernels.loader.digest import files_of
from fastkernels.measure.environment import environment, require_device
from fastkernels.measure.sole import SoleUse
from fastkernels.progress import Progress, Show
from fastkernels.records import Device, EvalReport, ModelResult, Size, UnfinishedModel, default_size
from fastkernels.registry.schema import Architecture
from fastkernels.registry.workloads import Workload
from fastkernels.runner.inside import flags
from fastkernels.runner.models.answers import Answers
from fastkernels.runner.models.model_trial import ModelTrial
from fastkernels.runner.models.program_answers import ProgramAnswers
from fastkernels.runner.models.sides import Side, Sides, Timeouts
from fastkernels.runner.models.token_answers import TokenAnswers
from fastkernels.runner.sandbox.isolation import ALWAYS, HiddenMemory, common
from fastkernels.runner.source_rules import imported_by
from fastkernels.runner.worker.gpu_idle_check import GpuIdleCheck
from fastkernels.score.macroeval import with_score
from fastkernels.settings import candidates_dir, resolve

if TYPE_CHECKING:
    from fastkernels.loader.weights import ModelSource

# Fewer than six bound no median with 95 %, and are taken as normal: two that differ by 0.3 % leave 1.9 % to
# either side, four that scatter as much 0.3 %.
ROUNDS: dict[Size, int] = {"tiny": 6, "full": 4}
# Time of a workload for more rounds than these; none where a number was asked. At full size that is for
# images and single requests: a round of 1,000 requests takes longer.
EXTRA_S: dict[Size, float] = {"tiny": 6.0, "full": 20.0}
KINDS: dict[str, Callable[..., Answers]] = {"tokens": TokenAnswers, "program": ProgramAnswers}


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


def run_eval(
    request: EvalRequest,
    show: Show = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> EvalReport:
    """Evaluate every model of the request. Ctrl-C ends the workers and gives the report so far,
    `complete=False`. A model that cannot be judged is in `unevaluated`: the others keep their results, and
    there is no MacroEval. `show` hears what goes on, `say` what is known before anything runs.

    Raises NotFoundError, UsageError, MachineError, BaselineError, the last three where there is no result.
    """
    if request.tp > 1:
        from fastkernels.runner.models import placement  # with PyTorch

        placement.require_devices(request.device, request.tp)
    planned, skipped = plan(request)
    for why in skipped.values():
        say(f"skipped: {why}")
    for line in out_of_reach(request, [target for target, _ in planned]):
        say(line)
    seed = secrets.randbits(62) if request.seed is None else request.seed
    machine = environment(request.device)
    judged = tuple(map(files_of, [request.candidates] if request.candidates else []))
    results: list[ModelResult] = []
    unfinished: list[UnfinishedModel] = []
    errors: dict[str, FastKernelsError] = {}
    complete = True
    levels: tuple[str, ...] | None = None  # of every candidate process so far
    try:
        with tempfile.TemporaryDirectory(prefix="fk-eval-") as caches, HiddenMemory() as memory:
            for number, (target, chosen) in enumerate(planned):
                try:
                    trial = _trial(request, target, chosen, seed, Path(caches))
                    trial.show = _among(show, target.model, number, len(planned))
                    with contextlib.closing(trial.sides) as sides:
                        try:
                            result = trial.run()
                        except (FastKernelsError, KeyboardInterrupt):
                            unfinished += trial.unfinished()
                            raise
                        finally:
                            if sides.isolation is not None:
                                hidden = ("memory",) if memory.hidden else ()
                                levels = common(levels, (*ALWAYS, *hidden, *sides.isolation))
                        notes = (*result.notes, *_of_the_process(sides, request.tp))
                        results.append(result.model_copy(update={"notes": notes}))
                except FastKernelsError as error:
                    errors[target.model] = error
    except KeyboardInterrupt:
        complete = False
    if errors and complete and not results and not unfinished:
        raise next(iter(errors.values()))
    report = EvalReport(
        schema=1,
        environment=machine.model_copy(update={"isolation": levels or ALWAYS}),
        request={**request.described(), "seed": seed},
        candidates=tuple(map(shown, request.sources)),
        judged=judged,
        models=tuple(results),
        complete=complete,
        macroeval=None,
        unevaluated={model: str(error).removeprefix(f"{model}: ") for model, error in errors.items()},
        skipped={model: str(error).removeprefix(f"{model}: ") for model, error in skipped.items()},
        unfinished=tuple(unfinished),
    )
    try:
        return with_score(report)
    except KeyboardInterrupt:
        return report.model_copy(update={"complete": False})


def _trial(
    request: EvalRequest,
    target: Target,
    workloads: Sequence[Workload],
    seed: int,
    caches: Path,
) -> ModelTrial:
    answers = _answers(request, target, random.Random(seed))
    weights_seed = _weights_seed(request, target, seed)
    return ModelTrial(
        architecture=target.architecture,
        model=target.model,
        config=target.config,
        size=request.size,
        answers=answers,
        workloads=workloads,
        candidates=request.candidates,
        sides=_sides(request, target, answers, workloads, weights_seed, caches),
        rounds=request.rounds or ROUNDS[request.size],
        extra_s=0.0 if request.rounds else EXTRA_S[request.size],
        restarts=_start_quickly(request, target),
    )


def _among(show: Show, model: str, before: int, models: int) -> Callable[[Progress], None]:
    """A model's steps among those of all, each of which is taken to have as many."""

    def told(step: Progress) -> None:
        done = before * step.total + step.done
        show(Progress(done, models * step.total, f"{model}: {step.text}"))

    return told


def _of_the_process(sides: Sides, ranks: int) -> Iterator[str]:
    """Notes on how the candidate's process ran."""
    if ranks > 1:
        yield f"each engine ran on {ranks} ranks; sites, calls and settings are those of rank 0"
    if sides.stays_root:
        yield f"the candidate ran as root: {sides.stays_root}"
    if sides.put_back:
        yield flags.told(sides.put_back)


def _weights_seed(request: EvalRequest, target: Target, seed: int) -> int:
    """The engines' seed. It travels to the candidate's process, so the prompts must not follow from it."""
    if request.size == "tiny" and not target.checkpoint:
        return target.architecture.configs[target.config].seed
    return int.from_bytes(hashlib.sha256(f"weights {seed} 0".encode()).digest()[:4], "big")


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


def plan(request: EvalRequest) -> tuple[list[tuple[Target, list[Workload]]], dict[str, UsageError]]:
    """The models of the request with their workloads; and those that nothing of it can be asked of, which is
    known without them: the others are evaluated, and scored. UsageError where no model is left."""
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
    return planned, skipped


def _require_ranks(request: EvalRequest, target: Target) -> None:
    """UsageError where the model cannot be split over as many ranks."""
    if request.tp == 1:
        return
    from fastkernels.runner.models import placement

    try:
        placement.require_split(_source(target), request.tp, request.ep > 1, request.device)
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


def out_of_reach(request: EvalRequest, targets: Sequence[Target]) -> Iterator[str]:
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


def _answers(request: EvalRequest, target: Target, rng: random.Random) -> Answers:
    correctness = target.architecture.correctness
    if request.size not in correctness.samples:
        raise UsageError(f"{target.model}: it has no samples of size {request.size}. Choose another --size")
    try:
        return KINDS[correctness.kind](correctness, request.size, target.hf_config, rng)
    except UsageError as error:
        raise UsageError(f"{target.model}: {error}") from error


def _sides(
    request: EvalRequest,
    target: Target,
    answers: Answers,
    workloads: Sequence[Workload],
    seed: int,
    caches: Path,
) -> Sides:
    exclusive = request.device == "cuda" and not _fit_together(request, target)
    engine: dict[str, Any] = {
        # Workers run in a folder of their own.
        "model": str(Path(target.model).resolve()) if Path(target.model).is_dir() else target.model,
        "device": request.device,
        "seed": seed,
        "enforce_eager": request.eager,
        **answers.engine(workloads, exclusive),
    }
    if request.tp > 1:
        engine |= {"tensor_parallel_size": request.tp, "enable_expert_parallel": request.ep > 1}
    if target.model == target.architecture.id:
        engine["config"] = target.config
    layers = request.candidates.layers if request.candidates else ()
    checkpoint = (target.checkpoint,) if target.checkpoint else ()
    both: dict[Side, Sequence[Path]] = {"baseline": (), "candidate": layers}
    timeouts = Timeouts.of(request.size, request.timeout_s)
    watched = request.device == "cuda" and not exclusive
    idle_check = GpuIdleCheck(SoleUse(list(range(request.tp)))) if watched else None
    return Sides(answers.side, both, engine, exclusive, caches, timeouts, checkpoint, idle_check)


def _start_quickly(request: EvalRequest, target: Target) -> bool:
    """Whether two processes for every round cost little: a tiny model on a CPU is built in some tenths of a
    second. On a GPU weights are loaded and graphs captured, and a folder may hold any model."""
    return request.device == "cpu" and request.size == "tiny" and target.checkpoint is None


def _fit_together(request: EvalRequest, target: Target) -> bool:
    from fastkernels.runner.models import placement

    return placement.fit_together(_source(target), request.tp, request.ep > 1)


def _source(target: Target) -> ModelSource:
    from fastkernels.loader.weights import find

    is_registered = target.model == target.architecture.id
    return find(target.model, config=target.config) if is_registered else find(target.model)
