"""Every registered case is admitted, but those that the registry excepts. Here on the tiny cases that `fk
audit` takes, and a few more; benchmarks/*/audit_*.json has others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.audit.admission import admit, audit_case
from fastkernels.audit.run import selected
from fastkernels.records import AuditRow, Case
from fastkernels.registry.schema import TaskEntry

SEED = 0  # of `fk audit`
REPORTS = sorted(Path(__file__).parents[3].glob("benchmarks/*/audit_*.json"))
VARIANTS = [(entry, variant) for entry in registry.tasks() for variant in entry.variants]
# Draws tell little where a case has few rows: what one of these leaves open another has to show.
SAMPLING = ("-T8-V256-f32", "-T8-V256-top_k-top_p", "greedy", "same-position", "same-seed")

# Cases that once found what the first and the last did not: rows of one length, whose starts nobody reads;
# images whose second norm hardly needs its epsilon; rows of one value in a block with a norm.
ALSO = ("whisper-tiny-prefill-8x4-f32", "siglip2-tiny-encode-mixed-f32", "single-flux-tiny-T3-22x64-f32")


def chosen(entry: TaskEntry, variant: str) -> list[Case]:
    taken = selected(entry, "tiny")
    also = [case for case in registry.cases(entry, "tiny") if case.id in ALSO and case not in taken]
    return [case for case in (*taken, *also) if case.variant == variant]


def refused(entry: TaskEntry, case: str, device: str) -> bool:
    return not {"*", case}.isdisjoint(entry.not_admitted.get(device, {}))


def told(row: AuditRow) -> str:
    bad = [f"{check.name}: {check.reason}" for check in row.checks if check.good is False]
    return f"{row.task} {row.case}: {bad}"


def each(levels: tuple[int, ...]) -> pytest.MarkDecorator:
    of_levels = [(entry, variant) for entry, variant in VARIANTS if entry.level in levels]
    ids = [f"{entry.id}:{variant}" for entry, variant in of_levels]
    return pytest.mark.parametrize(("entry", "variant"), of_levels, ids=ids)


@each(levels=(1, 2, 3))
def test_wrong_kernels_fail_and_right_ones_pass(entry: TaskEntry, variant: str) -> None:
    if entry.rule == "sampler":
        pytest.skip("below, over several cases")
    admitted_or_excepted(entry, variant)


@each(levels=(4,))
def test_wrong_kernels_fail_in_whole_models(entry: TaskEntry, variant: str) -> None:
    """Of mistakes that their parts have shown above: each takes seconds."""
    admitted_or_excepted(entry, variant)


def admitted_or_excepted(entry: TaskEntry, variant: str) -> None:
    for case in chosen(entry, variant):
        row = audit_case(entry, case, "cpu", SEED)
        assert row.admitted == (not refused(entry, case.id, "cpu")), told(row)
        assert any(check.kind == "trivial" and check.good for check in row.checks)
        assert any(check.kind == "mutant" and check.good for check in row.checks)
        assert sum(check.kind == "golden" and check.good is True for check in row.checks) >= 3


@pytest.mark.parametrize("entry", [entry for entry in registry.tasks() if entry.rule == "sampler"])
def test_a_sampler_that_looks_at_less_than_all_of_its_inputs_fails(entry: TaskEntry) -> None:
    cases = [case for part in SAMPLING for case in registry.cases(entry, size="tiny", glob=part)]
    task = admit(entry.id, [audit_case(entry, case, "cpu", SEED) for case in cases])
    assert (task.admitted, task.refused) == (True, {}), task.problems


@pytest.mark.parametrize("path", REPORTS, ids=[f"{path.parent.name}/{path.stem}" for path in REPORTS])
def test_the_registry_says_what_committed_audits_found(path: Path) -> None:
    report = json.loads(path.read_text())
    device = report["environment"]["device_type"]
    for task in report["tasks"]:
        entry = registry.task(task["task"])
        said = entry.not_admitted.get(device, {})
        assert task["admitted"] == ("*" not in said), task["problems"]
        there = {
            case.id for case in registry.cases(entry)
        }  # the report may be older than the budget of cases
        assert "*" in said or said.keys() == task["refused"].keys() & there, entry.id
