"""A run that ends early has some of every task, the largest of each phase first."""

from math import prod

import pytest

from fastkernels import registry
from fastkernels.errors import NotFoundError, UsageError
from fastkernels.records import TensorSpec
from fastkernels.runner.tuning.plan import TuneRequest, plan


def test_every_task_has_a_case_among_the_first_and_phases_take_turns() -> None:
    found = plan(TuneRequest(device="cuda"))
    tasks = {case.task for case in found.cases}
    assert {case.task for case in found.cases[: len(tasks)]} == tasks
    wanted = [
        case
        for entry in registry.tasks()
        if entry.level < 3 and entry.kernels
        for case in registry.cases(entry, "full")
        if case.timed
    ]
    known = [(c.task, c.id) for c in found.cases] + [(one.task, one.case) for one in found.untimed]
    assert sorted(known) == sorted((case.task, case.id) for case in wanted)
    assert all("ranks" in one.why for one in found.untimed)


def test_of_a_phase_the_largest_of_each_architecture_comes_first() -> None:
    asked = TuneRequest(device="cuda", targets=("rms_norm",), architectures=("llama", "gemma4"))
    cases = plan(asked).cases
    assert {case.provenance.architecture for case in cases} == {"llama", "gemma4"}
    assert {case.provenance.phase for case in cases[:2]} == {"prefill", "decode"}
    for phase in ("prefill", "decode"):
        elements = {}
        for case in (case for case in cases if case.provenance.phase == phase):
            size = sum(prod(x.shape) for x in case.inputs.values() if isinstance(x, TensorSpec))
            elements.setdefault((case.provenance.architecture, case.variant), []).append(size)
        assert all(sizes == sorted(sizes, reverse=True) for sizes in elements.values())


def test_what_leaves_nothing_is_named() -> None:
    with pytest.raises(NotFoundError, match="No case 'no-such'"):
        plan(TuneRequest(device="cpu", targets=("rms_norm",), case_glob="no-such"))
    with pytest.raises(UsageError, match="no timed tiny cases of levels 1 and 2"):
        plan(TuneRequest(device="cpu", targets=("L4/llama",)))
    with pytest.raises(UsageError, match="No task matches"):
        plan(TuneRequest(device="cpu", targets=("rms_norm",), architectures=("yolov10",)))
