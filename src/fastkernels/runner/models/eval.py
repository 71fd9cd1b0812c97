"""Tier 3: one trial for each model of a request (eval_request.py), and the report with its MacroEval."""

from __future__ import annotations

import contextlib
import hashlib
import random
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fastkernels.errors import FastKernelsError, UsageError
from fastkernels.layout import shown
from fastkernels.loader.digest import files_of
from fastkernels.measure.environment import environment
from fastkernels.measure.sole import SoleUse
from fastkernels.progress import Progress, Show
from fastkernels.records import EvalReport, ModelResult, Size, UnfinishedModel
from fastkernels.registry.workloads import Workload
from fastkernels.runner.inside import flags
from fastkernels.runner.models.answers import Answers
from fastkernels.runner.models.eval_request import EvalRequest, Target, plan, source_of
from fastkernels.runner.models.model_trial import ModelTrial
from fastkernels.runner.models.program_answers import ProgramAnswers
from fastkernels.runner.models.sides import Side, Sides, Timeouts
from fastkernels.runner.models.token_answers import TokenAnswers
from fastkernels.runner.sandbox.isolation import ALWAYS, HiddenMemory, common
from fastkernels.runner.worker.gpu_idle_check import GpuIdleCheck
from fastkernels.score.macroeval import with_score

# Fewer than six bound no median with 95 %, and are taken as normal: two that differ by 0.3 % leave 1.9 % to
# either side, four that scatter as much 0.3 %.
ROUNDS: dict[Size, int] = {"tiny": 6, "full": 4}
# Time of a workload for more rounds than these; none where a number was asked. At full size that is for
# images and single requests: a round of 1,000 requests takes longer.
EXTRA_S: dict[Size, float] = {"tiny": 6.0, "full": 20.0}
KINDS: dict[str, Callable[..., Answers]] = {"tokens": TokenAnswers, "program": ProgramAnswers}


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
    planned, skipped = plan(request, say)
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
                        from fastkernels.measure.absent import absent  # with PyTorch

                        lacks = absent(target.architecture.task, request.device)
                        results.append(result.model_copy(update={"notes": notes, "absent": lacks}))
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

    return placement.fit_together(source_of(target), request.tp, request.ep > 1)
