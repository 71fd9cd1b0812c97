"""Cases that replay a golden folder: beside each timed case of uniform routing a twin with captured routing.

    llama-tiny-T8-... has nothing to replay      mixtral-tiny-T8-E4-f32 -> mixtral-tiny-T8-E4-captured-f32

The twin's tokens choose experts as captured tokens of its phase did; in a mixed step prefill tokens, of which
it has most. What computes the choice from hidden states (a whole block, layer or model) gets drawn rows that
lead to the captured experts: real rows have near ties, where two right kernels may choose differently, and
the judge could not tell which is wrong. A case that no architecture makes (a group's ranks) replays a capture
with as many experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.loader import golden
from fastkernels.records import REGISTRY, Capture, Case, Golden, Routing, TensorSpec, TokenPhase

CAPTURED = "captured"


def with_captured(found: Mapping[str, list[Case]], folder: str) -> dict[str, list[Case]]:
    """Cases by task, each followed by its twin if it has one.

    Raises UsageError where no case has one: nothing in them chooses experts, or those of another model.
    """
    capture = golden.read(folder).capture
    replayable = [case for case in chain.from_iterable(found.values()) if _experts(case) is not None]
    _require_some(replayable, capture, folder)
    twins = {
        (case.task, case.id): _twin(case, capture, folder) for case in replayable if _fits(case, capture)
    }
    with_twins = {
        task: [[case, twins[task, case.id]] if (task, case.id) in twins else [case] for case in cases]
        for task, cases in found.items()
    }
    return {task: [*chain.from_iterable(pairs)] for task, pairs in with_twins.items()}


def twin_id(case_id: str) -> str:
    """The skew stands before the dtype, as in the ids of the registry's skewed cases."""
    rest, _, dtype = case_id.rpartition("-")
    return f"{rest}-{CAPTURED}-{dtype}"


def _experts(case: Case) -> tuple[int | None, int] | None:
    """(experts of a token if the case says so, experts) of a timed case that has something to replay."""
    if not case.timed:
        return None
    if case.routing is not None:
        return (case.routing.top_k, case.routing.experts) if case.routing.skew == "uniform" else None
    for name in registry.task(case.task).replays:
        spec = case.inputs[name]
        assert isinstance(spec, TensorSpec)
        return None, spec.shape[-1]
    return None


def _fits(case: Case, capture: Capture) -> bool:
    found = _experts(case)
    assert found is not None
    same = found[0] in (None, capture.top_k) and found[1] == capture.experts
    return same and case.provenance.architecture in (capture.architecture, REGISTRY)


def _twin(case: Case, capture: Capture, folder: str) -> Case:
    phase: TokenPhase = "decode" if case.provenance.phase == "decode" else "prefill"
    routing = Routing(
        top_k=capture.top_k,
        experts=capture.experts,
        skew=CAPTURED,
        golden=Golden(folder=folder, phase=phase),
    )
    draws = registry.task(case.task).replays
    inputs = {
        name: spec.model_copy(update={"draw": draws[name]})
        if name in draws and isinstance(spec, TensorSpec)
        else spec
        for name, spec in case.inputs.items()
    }
    return case.model_copy(update={"id": twin_id(case.id), "routing": routing, "inputs": inputs})


def _require_some(replayable: list[Case], capture: Capture, folder: str) -> None:
    if not replayable:
        tasks = [
            entry.id
            for entry in registry.tasks()
            if any(_experts(case) is not None for case in registry.cases(entry))
        ]
        raise UsageError(
            f"--golden {folder}: nothing in the cases asked for chooses experts. "
            f"Tasks that replay: {', '.join(tasks)} (--target)"
        )
    if any(_fits(case, capture) for case in replayable):
        return
    here = sorted({case.provenance.architecture for case in replayable} - {REGISTRY})
    if here and capture.architecture not in here:
        raise UsageError(
            f"--golden {folder}: captured from {capture.architecture}, and the cases asked for are of "
            f"{', '.join(here)}. Capture one of those: fk capture --model {here[0]}"
        )
    sizes = sorted({case.size for case in replayable})
    raise UsageError(
        f"--golden {folder}: its tokens choose {capture.top_k} of {capture.experts} experts, those of "
        f"{capture.architecture} in size {', '.join(sizes)} others. "
        f"Ask for another --size, or capture a model with as many experts"
    )
