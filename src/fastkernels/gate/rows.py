"""Rows of the gate's report, from what was measured."""

from __future__ import annotations

from fastkernels.gate import verdicts
from fastkernels.gate.measurement import Measurement
from fastkernels.gate.pairs import Key, Pair
from fastkernels.judge.verdict import MACHINE_FAULTS
from fastkernels.records import Contract, GateRow, GateVerdict
from fastkernels.runner.kernel_trial.request import Work


def rows(measured: Measurement, contract: Contract) -> list[GateRow]:
    """Every case of head or base, as far as it is known, all pairs of one task together. `contract`: of rows
    without a look."""
    found: dict[tuple[str, str], list[GateRow]] = {}
    for pair in measured.comparison.pairs:
        for key, work in {**pair.base.works, **pair.head.works}.items():
            row = _row(measured, pair, key, work, contract)
            if row is not None:
                found.setdefault((row.task, row.variant), []).append(row)
    return [row for of_task in found.values() for row in of_task]


def _row(measured: Measurement, pair: Pair, key: Key, work: Work, contract: Contract) -> GateRow | None:
    concluded = _conclude(measured, pair, key, work)
    if concluded is None:
        return None
    verdict, reason = concluded
    looks = tuple(measured.looks.get((pair.name, key), ()))
    timed_under = verdicts.middle(looks).contract if looks else None
    failing = measured.head_row(pair, key)
    return GateRow(
        task=work.entry.id,
        variant=work.case.variant,
        case=work.case.id,
        candidate=pair.name,
        verdict=verdict,
        reason=reason,
        contract=timed_under or contract,
        calls=work.case.calls,
        timed=work.case.timed,
        head=measured.verdict(pair, "head", key),
        base=measured.verdict(pair, "base", key),
        looks=looks,
        failure=failing.failure if failing else None,
    )


def _conclude(measured: Measurement, pair: Pair, key: Key, work: Work) -> tuple[GateVerdict, str] | None:
    """The verdict and one sentence why; None where it is not known yet."""
    head, base = measured.verdict(pair, "head", key), measured.verdict(pair, "base", key)
    if key not in pair.head.works:
        return "MISSING", "the base has it, the head does not"
    if head is None:
        return None
    if head == "INVALID_BASELINE" and pair.base.source is not None:
        return "AMBIGUOUS", "the base itself fails here, so there is nothing to hold the head against"
    if head in MACHINE_FAULTS:
        return "AMBIGUOUS", f"this machine cannot judge the head: {head}"
    if head != "PASSED":
        return "BROKEN", f"the head is {head}"
    if key not in pair.base.works:
        return "NEW", "right; the base has nothing to compare it with"
    if base is None:
        return None
    if base in MACHINE_FAULTS:
        return "AMBIGUOUS", f"this machine cannot judge the base: {base}"
    if base != "PASSED":
        return "NEW", f"right; the base is {base}, so there is nothing to compare it with"
    if not work.case.timed:
        refused = work.entry.refusals(work.case.id)
        untimed = "a case that is not admitted is" if refused else "held-out shapes are"
        return "SAME", f"right on both sides; {untimed} not timed"
    looks = measured.looks.get((pair.name, key), [])
    if len(looks) < verdicts.wanted(looks, measured.limits):
        return None
    return verdicts.settle(looks, measured.limits)
