"""The parts of a long question: of other cases each, and together all of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.runner.kernel_trial.request import KernelsRequest, plan

ROOT = Path(__file__).parents[3]


def given(part, flag: str) -> tuple[str, ...]:
    words = part.command
    return tuple(words[i + 1] for i, word in enumerate(words[:-1]) if word == flag)


def planned(part, mode: str) -> list[tuple[str, str, str | None]]:
    architectures, levels, cases = (given(part, f"--{flag}") for flag in ("architecture", "level", "case"))
    request = KernelsRequest(
        targets=given(part, "--target"),
        case_glob=cases[0] if cases else None,
        level=int(levels[0]) if levels else None,
        architecture=architectures[0] if architectures else None,
        size="full",
        device="cpu",
        **{mode: True},
    )
    return [
        (work.entry.id, work.case.id, work.case.variant)
        for job in plan(request.resolved())
        for work in job.works
    ]


def test_the_self_test_of_all_architectures_is_all_of_two_levels(jobs) -> None:
    found = Counter(row for part in jobs.JOBS["self_test"].parts for row in planned(part, "self_test"))
    entries = [entry for level in (1, 2) for entry in registry.find_tasks((), level)]
    timed = {(e.id, c.id, c.variant) for e in entries for c in registry.cases(e, "full") if c.timed}
    assert timed <= set(found)
    assert set(found.values()) == {1}


@pytest.mark.parametrize(("job", "mode"), [("self_test_llama", "self_test"), ("kernels_llama", "providers")])
def test_kernels_are_cut_into_all_cases(jobs, job: str, mode: str) -> None:
    found = Counter(row for part in jobs.JOBS[job].parts for row in planned(part, mode))
    levels = (1, 2, 3, 4) if mode == "self_test" else (1,)
    entries = [entry for level in levels for entry in registry.find_tasks((), level, "llama")]
    every = {(e.id, c.id, c.variant) for e in entries for c in registry.cases(e, "full", "llama")}
    assert set(found) == every
    if mode == "self_test":
        assert set(found.values()) == {1}


def test_an_evaluation_is_cut_into_all_workloads(jobs) -> None:
    found = [name for part in jobs.JOBS["eval_llama_self_test"].parts for name in given(part, "--workload")]
    assert sorted(found) == sorted(registry.architecture("llama").workloads)


def test_the_suite_is_cut_into_all_its_models(jobs) -> None:
    models = [name for part in jobs.JOBS["eval_suite_default"].parts for name in given(part, "--model")]
    assert set(models) == {entry.id for entry in registry.architectures()}


def test_no_two_parts_write_one_file(jobs) -> None:
    parts = {part for job in jobs.JOBS.values() for part in job.parts}
    assert len({part.name for part in parts}) == len(parts)
    whole = {name for name, job in jobs.JOBS.items() if job.join is not None}
    assert not whole & {part.name for part in parts}


def test_every_gpu_test_is_a_job(jobs) -> None:
    files = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert set(jobs.GPU_TESTS) == files
    for name in files:
        (part,) = jobs.JOBS[f"gpu_tests_{name}"].parts
        assert Path(part.command[1]).is_file()


def test_audits_are_of_every_level(jobs) -> None:
    assert [given(part, "--level") for part in jobs.JOBS["audit"].parts] == [("1",), ("2",), ("3",), ("4",)]
