"""`fk eval` in parts: a model each."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fastkernels.cluster.facts import levels, used
from fastkernels.cluster.nodes import Cluster
from fastkernels.cluster.schedule import Answered, Part, Problem
from fastkernels.cluster.sent import packed
from fastkernels.errors import MachineError
from fastkernels.layout import shown
from fastkernels.loader.candidates import CandidateSet
from fastkernels.loader.digest import files_of
from fastkernels.progress import Progress, Show
from fastkernels.records import EvalReport
from fastkernels.runner.models.eval import run_eval
from fastkernels.runner.models.eval_request import EvalRequest, plan
from fastkernels.score.macroeval import with_score
from fastkernels.score.merge import merge


@dataclass(frozen=True)
class ModelPart:
    request: EvalRequest  # of one model, and without its candidates

    def judge(self, candidate: CandidateSet | None) -> EvalReport:
        """On a node: the report of this model alone."""
        return run_eval(replace(self.request, candidates=candidate))


def run_eval_on(
    cluster: Cluster,
    request: EvalRequest,
    show: Show = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> EvalReport:
    """The report that run_eval gives, judged by the nodes. They read a model's folder by the same path.

    UsageError, MachineError, BaselineError as run_eval, where no model has a result.
    """
    if request.device == "cuda" and request.tp > cluster.most_gpus:
        raise MachineError(
            f"--tp {request.tp}: a group has all its ranks on one node, and no node of the cluster has more "
            f"than {cluster.most_gpus} GPUs"
        )
    request = replace(request, models=tuple(map(_absolute, request.models)))
    planned, skipped = plan(request, say)
    seed = secrets.randbits(62) if request.seed is None else request.seed
    name = request.candidates.name if request.candidates else None
    sent = {name: packed(request.candidates)} if name and request.candidates else {}
    parts = []
    for target, chosen in planned:
        asked = replace(
            request,
            models=(target.model,),
            workloads=tuple(workload.name for workload in chosen),
            candidates=None,
            seed=seed,
        )
        gpus = request.tp if request.device == "cuda" else 0
        parts.append(Part(target.model, ModelPart(asked), name, gpus=gpus))
    found: dict[str, Answered] = {}
    complete = True
    show(Progress(0, len(parts), f"{len(parts)} models on {cluster.told}"))
    try:
        for part, answered in cluster.answers(parts, sent, say, show):
            found[part.name] = answered
            show(Progress(len(found), len(parts), f"judged: {part.name}"))
    except KeyboardInterrupt:
        complete = False
    problems = {model: one.answer for model, one in found.items() if isinstance(one.answer, Problem)}
    if problems and complete and len(problems) == len(found):
        raise next(iter(problems.values())).error
    blank = EvalReport(
        schema=1,
        environment=cluster.environment,
        request={**request.described(), "seed": seed},
        candidates=tuple(map(shown, request.sources)),
        judged=tuple(map(files_of, [request.candidates] if request.candidates else [])),
        models=(),
        macroeval=None,
        complete=complete,
        unevaluated={model: one.message.removeprefix(f"{model}: ") for model, one in problems.items()},
        skipped={model: str(error).removeprefix(f"{model}: ") for model, error in skipped.items()},
    )
    judged = [found[part.name] for part in parts if part.name in found and part.name not in problems]
    isolation = levels(one.answer for one in judged)
    whole = merge([blank, *(one.answer for one in judged)]).model_copy(
        update={
            "environment": blank.environment.model_copy(update={"isolation": isolation}),
            "nodes": used((one.node, one.answer) for one in judged),
        }
    )
    try:
        return with_score(whole)
    except KeyboardInterrupt:
        return whole.model_copy(update={"complete": False})


def _absolute(model: str) -> str:
    return str(Path(model).resolve()) if Path(model).is_dir() else model
