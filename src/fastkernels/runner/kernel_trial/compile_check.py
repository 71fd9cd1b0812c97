"""The column `compile`, from one untimed look at a candidate: what torch.compile says.

A module is judged alone, but in production it is traced with what surrounds it. So `compile` looks at the
task's own module and at the nearest module above that holds it, each with up to three sizes of calls: a graph
break, or more traces than the baseline needs for the same calls, and it cannot be shipped as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastkernels import registry
from fastkernels.loader.materialize import build_module, task_class
from fastkernels.loader.overlay import Overlay
from fastkernels.records import REGISTRY, Case, TensorSpec
from fastkernels.registry import uses
from fastkernels.runner.kernel_trial.request import Job, Work
from fastkernels.runner.kernel_trial.worker_set import WorkerSet
from fastkernels.runner.worker.worker_calls import Compiled, Trouble

SIZES = 3  # one for the first trace, one that makes it dynamic, one that must find it


def compile_columns(worker_set: WorkerSet, job: Job, work: Work) -> dict[str, Any]:
    """`compile` and its detail: what the baseline does too is nobody's fault."""
    for cases in (_sizes(work.case, work.case.provenance.phase), parents(work.case)):
        if not cases:
            continue
        where = "" if cases[0].task == work.case.task else f"inside {cases[0].task}: "
        found, baseline = (_traced(worker_set, job, cases, candidate) for candidate in (True, False))
        if baseline.status != "ok":
            return {"compile": "n/a", "compile_detail": f"{where}the baseline too: {baseline.detail}"}
        if found.status != "ok":
            return {"compile": found.status, "compile_detail": where + found.detail}
        if found.traces > baseline.traces:
            detail = (
                f"{where}{len(cases)} sizes of calls are traced {found.traces} times, the baseline "
                f"{baseline.traces} times"
            )
            return {"compile": "recompiles", "compile_detail": detail}
    return {"compile": "ok", "compile_detail": None}


def parents(case: Case) -> list[Case]:
    """Cases of the lowest task above whose module holds one of the case's class: of the same configuration,
    else of the same architecture; of any architecture for a case that no architecture makes."""
    overlay = Overlay.over_baseline()
    held, source = task_class(overlay, case), case.provenance
    entries = [entry.id for entry in registry.tasks()]
    architecture = None if source.architecture == REGISTRY else source.architecture
    above = [
        other
        for user in sorted(uses.users(case.task, entries))
        for other in registry.cases(user, case.size, architecture)
    ]
    tried: set[str] = set()
    for other in sorted(above, key=lambda o: o.provenance.config != source.config):
        if (kind := _kind(other)) in tried:
            continue
        tried.add(kind)
        if any(type(part) is held for part in build_module(overlay, other, "meta").modules()):
            return _sizes(other, source.phase)
    return []


def _sizes(case: Case, phase: str) -> list[Case]:
    """The smallest calls of the case's kind of module, of different sizes; those of this phase before others,
    because modules that attend do something else in another."""
    alike = [other for other in registry.cases(case.task, case.size) if _kind(other) == _kind(case)]
    by_size: dict[int, Case] = {}
    for other in sorted(alike or [case], key=lambda o: (o.provenance.phase != phase, _elements(o))):
        by_size.setdefault(_elements(other), other)
    return list(by_size.values())[:SIZES]


def _kind(case: Case) -> str:
    """What calls that one trace could serve have in common."""
    return repr((case.task, case.variant, case.dtype, case.init, list(case.inputs)))


def _elements(case: Case) -> int:
    """Of the first tensor argument: the tokens of a call, for the same kind of module."""
    return next((_product(spec.shape) for spec in case.inputs.values() if isinstance(spec, TensorSpec)), 0)


def _product(shape: Iterable[int]) -> int:
    product = 1
    for dim in shape:
        product *= dim
    return product


def _traced(worker_set: WorkerSet, job: Job, cases: list[Case], candidate: bool) -> Compiled:
    """The last answer, or the first that is not ok; a module that cannot even be loaded is an error."""
    found = Compiled(status="ok", detail="", traces=0)
    for index, case in enumerate(cases):
        try:
            # Tracing does not look into our kernels, which are operators to it.
            with worker_set.loaded(job, case, candidate, again=index > 0, kernels_matter=False) as handle:
                found = handle.compiled(again=index > 0)
        except Trouble as trouble:
            return Compiled(status="error", detail=trouble.problem.failure.message, traces=found.traces)
        if found.status != "ok":
            break
    return found
