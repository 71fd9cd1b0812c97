"""The exit code that follows from a report, and of 3 what it means here and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fastkernels.records import (
    UNSTABLE_HALF_WIDTH,
    AuditReport,
    EvalReport,
    GateReport,
    KernelReport,
    Report,
)

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
UNDECIDED = 3


def exit_code(report: Report) -> int:
    """0 all passed · 1 a candidate failed, the gate was missed, or an audit refused something · 3 unstable,
    or this machine could not judge it all · 130 interrupted."""
    if not report.complete:
        return 1 if isinstance(report, KernelReport) and report.failed_fast else INTERRUPTED
    if isinstance(report, GateReport):
        return {"passed": 0, "failed": 1, "unclear": UNDECIDED}[report.outcome]
    if isinstance(report, AuditReport):
        good = all(task.admitted and not task.refused for task in report.tasks)
        return (UNDECIDED if report.unaudited else 0) if good else 1
    if isinstance(report, EvalReport):
        if all(model.valid for model in report.models):
            unstable = any(w.unstable for model in report.models for w in model.workloads)
            return UNDECIDED if unstable or report.unevaluated else 0
        return (
            1 if report.candidates else UNDECIDED
        )  # a baseline that differs from itself is no candidate's fault
    if report.summary.failed or any(f.authored for one in report.sanitized for f in one.findings):
        return 1
    # An implementation that cannot serve a case (`--providers`) is a fact about it, not a failure.
    return UNDECIDED if report.summary.unstable or not report.summary.passed else 0


def undecided(report: Report) -> str:
    """What a report with exit code 3 leaves open, and the next step, in a line."""
    if isinstance(report, GateReport):
        return "the gate is unclear: it neither passed nor failed. What to do: docs/gates.md"
    if isinstance(report, AuditReport):
        return "this machine did not audit everything. Another one must: above stands why"
    return "; ".join(_of_models(report) if isinstance(report, EvalReport) else _of_kernels(report))


def _of_models(report: EvalReport) -> Iterable[str]:
    if broken := [model.model for model in report.models if not model.valid]:
        yield f"the baseline differs from itself in {', '.join(broken)}: our fault, report it"
    if report.unevaluated:
        yield f"not evaluated: {', '.join(report.unevaluated)}. Above stands why"
    if unstable := sum(workload.unstable for model in report.models for workload in model.workloads):
        bound = f"{100 * UNSTABLE_HALF_WIDTH:.0f} %"
        yield (
            f"{_count(unstable, 'ratio is', 'ratios are')} known to more than {bound} only. What is said of "
            "correctness holds; do not quote these ratios, but run again where nothing else runs, or with "
            "--rounds 30"
        )


def _of_kernels(report: KernelReport) -> Iterable[str]:
    found = Counter(row.verdict for row in report.rows)
    if broken := found["INVALID_BASELINE"]:
        yield f"in {_count(broken, 'row', 'rows')} the baseline failed: our fault, report it"
    if unstable := found["UNSTABLE"]:
        yield (
            f"{_count(unstable, 'row is', 'rows are')} UNSTABLE, neither passed nor failed. Run again where "
            "nothing else runs, or with --budget 5"
        )
    if not report.summary.passed and not broken and not unstable:
        yield "nothing was judged: this machine lacks what these cases need. Above stands what"


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"
