"""What the rows of a run come to; and several runs, of other cases each, as one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fastkernels.errors import UsageError
from fastkernels.judge.verdict import MACHINE_FAULTS, is_failure
from fastkernels.measure import stats
from fastkernels.measure.parts import require_one_machine, require_same
from fastkernels.records import CandidateFiles, KernelReport, KernelRow, KernelSummary, primary

# What parts of one report have in common; their cases and seeds are their own.
_ONE_QUESTION = ("device", "contract", "size", "self_test", "providers", "golden")


def summarize(
    rows: Sequence[KernelRow],
    wall_s: float,
    measuring_s: float = 0.0,
    looking_s: float = 0.0,
    compiling_s: float = 0.0,
) -> KernelSummary:
    """Of the `wall_s` were spent: `compiling_s` in imports and first calls, `measuring_s` in the rest of the
    trials, `looking_s` on what the rows' calls launch and how they compile."""
    contract = primary(row.contract for row in rows)
    timed = [(r.speedup, r.calls) for r in rows if r.speedup is not None and r.contract == contract]
    competing = len({row.candidate for row in rows}) > 1
    others = sum(r.speedup is not None and r.contract != contract for r in rows)
    return KernelSummary(
        rows=len(rows),
        passed=sum(r.verdict == "PASSED" for r in rows),
        failed=sum(is_failure(r.verdict) for r in rows),
        unstable=sum(r.verdict in MACHINE_FAULTS for r in rows),
        geomean_speedup=None if competing or not timed else stats.geomean(*([*of] for of in zip(*timed))),
        contract=contract,
        other_contracts=others,
        wall_s=wall_s,
        measuring_share=min(1.0, measuring_s / wall_s) if wall_s else 0.0,
        looking_share=min(1.0, looking_s / wall_s) if wall_s else 0.0,
        compiling_share=min(1.0, compiling_s / wall_s) if wall_s else 0.0,
    )


def merge(reports: Sequence[KernelReport]) -> KernelReport:
    """The rows of all reports in one. Wall times add up.

    UsageError where the reports are of different machines, versions or questions, or of two candidates of
    one name, or where a row is in two of them.
    """
    first = reports[0]
    for other in reports[1:]:
        require_one_machine(first.environment, other.environment)
        require_same(first.request, other.request, _ONE_QUESTION, "request")
    rows = [row for report in reports for row in report.rows]
    counts = Counter((row.candidate, row.task, row.variant, row.case) for row in rows)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise UsageError(f"{len(twice)} rows are in two of the reports, the first is {' '.join(twice[0])}")
    summaries = [report.summary for report in reports]
    for row in rows:
        if row.calls < 1 or not (row.speedup is None or 0 < row.speedup < math.inf):
            told = f"{row.candidate} {row.task} {row.case}: speed-up {row.speedup}, {row.calls} calls"
            raise UsageError(f"{told}: no row that fk kernels writes")
    return first.model_copy(
        update={
            "request": {**first.request, "parts": [report.request for report in reports]},
            "rows": tuple(rows),
            "candidates": _judged(reports),
            "shadowed": tuple(dict.fromkeys(s for report in reports for s in report.shadowed)),
            "notes": tuple(dict.fromkeys(note for report in reports for note in report.notes)),
            "sanitized": tuple(one for report in reports for one in report.sanitized),
            "summary": summarize(
                rows,
                sum(s.wall_s for s in summaries),
                sum(s.wall_s * s.measuring_share for s in summaries),
                sum(s.wall_s * s.looking_share for s in summaries),
                sum(s.wall_s * s.compiling_share for s in summaries),
            ),
            "complete": all(report.complete for report in reports),
        }
    )


def _judged(reports: Sequence[KernelReport]) -> tuple[CandidateFiles, ...]:
    """The candidates of all reports, each once."""
    found: dict[str, CandidateFiles] = {}
    for judged in (one for report in reports for one in report.candidates):
        if found.setdefault(judged.name, judged).sha256 != judged.sha256:
            raise UsageError(
                f"The files of {judged.name} changed between the reports, so these are of two candidates. "
                "Judge all parts again with one of them, or give the two different names"
            )
    return tuple(found.values())
