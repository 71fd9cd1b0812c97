"""The level of an architecture follows from reports: reached with all of them, and not without any one."""

from __future__ import annotations

from typing import Any

import pytest

from fastkernels import registry
from fastkernels.report.evidence import Evidence, evidence

LLAMA = registry.architecture("llama")
AUDITED = [
    (task, case.id)
    for task in sorted(registry.tasks_of(LLAMA))
    if task[:2] in ("L1", "L2")
    for case in registry.cases(task, "full", "llama")
]


def report(kind: str, device: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "environment": {"device_type": device}, **fields}


def self_test(size: str, device: str, valid: bool = True, candidates: str = "self-test") -> dict[str, Any]:
    model = {"model": "llama", "size": size, "valid": valid}
    return report("eval", device, request={"candidates": candidates}, models=[model])


def parity(**outcome: int) -> dict[str, Any]:
    row = {"architecture": "llama", "passed": 5, "failed": 0, "skipped": 0, **outcome}
    return report("parity", "cpu", rows=[row])


def beside(device: str = "cuda", size: str = "full", of: str = "llama") -> dict[str, Any]:
    return report("vs_reference", device, architecture=of, size=size, ratios={"balanced": 1.1})


def audit(device: str = "cuda", admitted: bool = True, tasks: int | None = None) -> dict[str, Any]:
    rows = [{"task": task, "case": case, "admitted": admitted} for task, case in AUDITED[:tasks]]
    return report("admission", device, rows=rows)


WHOLE = {
    "parity": parity(),
    "tiny": self_test("tiny", "cpu"),
    "full": self_test("full", "cuda"),
    "beside": beside(),
    "audit": audit(),
}


def test_every_report_together_is_the_highest_level() -> None:
    another = {"rows": [], "environment": {"device_type": "cuda"}}  # of some program: no kind
    assert evidence(LLAMA, [another, *WHOLE.values()]) == Evidence("audited")


@pytest.mark.parametrize(
    ("without", "instead", "level", "says"),
    [
        ("parity", None, "", "benchmarks/parity.py --out benchmarks/cpu/parity.json"),
        ("parity", parity(failed=1), "", "fail"),
        ("parity", parity(passed=0), "", "fail"),
        ("parity", parity(skipped=1), "", "skipped"),
        ("tiny", None, "", "--size tiny --device cpu --json benchmarks/cpu/eval_llama_self_test.json"),
        ("tiny", self_test("tiny", "cpu", valid=False), "", "--model llama --size tiny"),
        ("tiny", self_test("tiny", "cpu", candidates="mine"), "", "--model llama --size tiny"),
        ("full", None, "parity", "--json benchmarks/DEVICE/eval_llama_self_test.json"),
        ("full", self_test("full", "cpu"), "parity", "on a GPU"),
        ("beside", None, "parity", "llama --out benchmarks/DEVICE/llama_vs_reference.json"),
        ("beside", beside(of="mixtral"), "parity", "vs_reference"),
        ("beside", beside(size="tiny"), "parity", "vs_reference"),
        ("beside", beside(device="cpu"), "parity", "vs_reference"),
        ("audit", None, "measured", "no audit of default"),
        ("audit", None, "measured", "--out benchmarks/DEVICE/audit_full.json.gz --resume"),
        ("audit", audit(device="cpu"), "measured", "no audit of default"),
        ("audit", audit(tasks=1), "measured", "no audit of default"),
        ("audit", audit(admitted=False), "measured", "does not admit"),
    ],
)
def test_without_one_the_level_is_lower_and_told_why(without, instead, level, says) -> None:
    reports = {**WHOLE, without: instead}
    found = evidence(LLAMA, [one for one in reports.values() if one])
    assert found.level == level
    assert any(says in line for line in found.missing), found.missing


def test_a_variant_may_be_audited_by_another_architectures_case() -> None:
    case = next(
        case for case in registry.cases("L1/rms_norm", "full") if case.provenance.architecture != "llama"
    )
    row = {"task": "L1/rms_norm", "case": case.id, "admitted": True}
    rows = [row, *({"task": t, "case": c, "admitted": True} for t, c in AUDITED if t != "L1/rms_norm")]
    reports = [*WHOLE.values(), report("admission", "cuda", rows=rows)]
    del reports[list(WHOLE).index("audit")]
    assert evidence(LLAMA, reports) == Evidence("audited")
    rows.remove(row)
    found = evidence(LLAMA, reports)
    assert (found.level, found.missing[:-1]) == ("measured", ("L1/rms_norm: no audit of default",))


def test_an_installed_package_has_no_reports() -> None:
    assert evidence(LLAMA, []).level == ""
