"""What table, Markdown and JUnit say of a gate in the same words."""

from __future__ import annotations

from fastkernels.gate.verdicts import FAILING, hidden_pct, middle
from fastkernels.records import LEAST_NOISE, GateLimits, GateReport, GateRow, primary
from fastkernels.report.contracts import contracts


def conclusion(report: GateReport) -> str:
    """`failed: 1 SLOW, 11 SAME`"""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.summary.verdicts.items() if count)
    interrupted = " (interrupted: what was finished until then)" if not report.complete else ""
    return f"{report.outcome}: {counts or 'nothing to compare'}{interrupted}"


def thresholds(report: GateReport) -> str:
    """What counts as a regression in this gate."""
    limits = report.limits
    least = {contract: 100 * LEAST_NOISE[contract] for contract in contracts(report.rows)}
    noise = "".join(
        f" (at least {pct:g} % in {contract})"
        for contract, pct in least.items()
        if pct > limits.max_regression_pct
    )
    return (
        f"SLOW: more than {limits.max_regression_pct:g} % and {limits.min_regression_us:g} us slower, beyond "
        f"the noise{noise}, and again in fresh processes"
    )


def mean(report: GateReport) -> str:
    """The geometric mean, and whether it reaches what was asked for; empty without timed rows."""
    summary, wanted = report.summary, report.limits.min_speedup
    asked = f"; at least {wanted:g} was asked for: {summary.min_speedup}" if wanted is not None else ""
    if summary.geomean_speedup is None or summary.geomean_ci is None:
        return f"no speed-up was measured{asked}" if asked else ""
    low, high = summary.geomean_ci
    known = f"{summary.geomean_speedup:.3f} ({low:.3f} .. {high:.3f})"
    return f"geometric mean of the speed-ups {known}, weighted by calls{_left_out(report)}{asked}"


def _left_out(report: GateReport) -> str:
    """Rows that the mean does not go over, because durations under two contracts never mix."""
    contract = primary(row.contract for row in report.rows)
    count = sum(row.contract != contract and bool(change(row)) for row in report.rows)
    return f", of contract {contract} ({count} timed under another are not in it)" if count else ""


def advice(report: GateReport) -> str:
    """What to do where the gate is unclear because of rows; empty otherwise."""
    rows = [row for row in report.rows if row.verdict == "AMBIGUOUS"]
    if not rows:
        return ""
    budget_s = report.request.get("budget_s")
    now = f" (now {budget_s:g} s a look)" if budget_s else ""
    which = "1 row is" if len(rows) == 1 else f"{len(rows)} rows are"
    return (
        f"{which} AMBIGUOUS: neither passed nor failed. Run again where nothing else runs, "
        f"or with a larger --budget{now}"
    )


def verdict(row: GateRow, limits: GateLimits) -> str:
    """`SAME ±8.0 %` where a regression of less would hide in the noise; else the verdict alone."""
    hidden = hidden_pct(row, limits)
    return row.verdict if hidden is None else f"{row.verdict} ±{hidden:.1f} %"


def change(row: GateRow) -> str:
    """By how much the head's time differs from the base's: `+4.9 %`; empty without numbers."""
    speedup = middle(row.looks).speedup if row.looks else None
    return "" if speedup is None else f"{100 * (1 / speedup - 1):+.1f} %"


def unclear_or_failing(row: GateRow) -> bool:
    return row.verdict in FAILING or row.verdict == "AMBIGUOUS"


def counted(row: GateRow) -> bool:
    """Whether a row is only counted: a held-out shape that is right on both sides."""
    return not row.timed and row.verdict == "SAME"


def held_out(report: GateReport) -> str:
    """How many rows are only counted; empty for none."""
    count = sum(counted(row) for row in report.rows)
    shapes = "shape" if count == 1 else "shapes"
    return f"{count} held-out {shapes} right on both sides, not timed" if count else ""
