"""Every registered task is admitted. Here on its first and last tiny case, a model on its first; `fk audit`
takes all of them."""

from __future__ import annotations

import pytest

from fastkernels import registry
from fastkernels.audit.admission import admit, audit_case
from fastkernels.audit.subject import unaudited
from fastkernels.records import AuditRow, Case
from fastkernels.registry.schema import TaskEntry

SEED = 0  # of `fk audit`
VARIANTS = [(entry, variant) for entry in registry.tasks() for variant in entry.variants]
# Draws tell little where a case has few rows: what one of these leaves open another has to show.
SAMPLING = ("-T8-V256-f32", "-T8-V256-top_k-top_p", "greedy", "same-position", "same-seed")

# What the audit found and the cases still have to mend: without the last norm's epsilon the model fails, but
# with a margin of 3.7 to 4.
# Modules with a layer norm in them refuse right sums of rows of one value (in two of them by 1.0 and 1.1).
# One position in five attends a little otherwise, deep in a backbone: wrong, but by a margin of 3 only. The
# larger map of the first case has the margin.
FOUND = {
    "L2/adaptive_norm": {"sums in another order"},
    "L3/diffusion_block": {"sums in another order"},
    "L3/vision_block": {"sums in another order"},
    "L3/encoder_layer": {"sums in another order"},
    "L3/yolo": {"attention.attn.attend.query_THK skipped", "attention.attn.attend.key_THK skipped"},
    "L4/llama": {"norm.eps skipped"},
}


def ends(entry: TaskEntry, variant: str) -> list[Case]:
    found = [case for case in registry.cases(entry, size="tiny") if case.variant == variant]
    return [found[0], *(found[1:][-1:] if entry.level < 4 else ())]


def told(row: AuditRow) -> str:
    bad = [f"{check.name}: {check.reason}" for check in row.checks if check.good is False]
    return f"{row.task} {row.case}: {bad}"


@pytest.mark.parametrize(("entry", "variant"), VARIANTS, ids=[f"{e.id}:{v}" for e, v in VARIANTS])
def test_wrong_kernels_fail_and_right_ones_pass(entry: TaskEntry, variant: str) -> None:
    if entry.rule == "sampler":
        pytest.skip("below, over several cases")
    for case in ends(entry, variant):
        if reason := unaudited(case):
            pytest.skip(reason)
        row = audit_case(entry, case, "cpu", SEED)
        bad = {check.name for check in row.checks if check.good is False}
        assert bad <= FOUND.get(entry.id, set()), told(row)
        assert any(check.kind == "trivial" and check.good for check in row.checks)
        assert any(check.kind == "mutant" and check.good for check in row.checks)
        assert sum(check.kind == "golden" and check.good is True for check in row.checks) >= 3


@pytest.mark.parametrize("entry", [entry for entry in registry.tasks() if entry.rule == "sampler"])
def test_a_sampler_that_looks_at_less_than_all_of_its_inputs_fails(entry: TaskEntry) -> None:
    cases = [case for part in SAMPLING for case in registry.cases(entry, size="tiny", glob=part)]
    task = admit(entry.id, [audit_case(entry, case, "cpu", SEED) for case in cases])
    assert task.admitted, task.problems
