"""A gate as Markdown, for a comment on a pull request.

What fails or is unclear comes first and open, everything else folded. Text of a candidate (its messages, what
it printed) is escaped and fenced in HTML: it can neither format the comment nor mention anybody.

A comment has a length. It is never cut within a row, a tag or an entity: what does not fit is left out whole,
and counted. Rows have half of it, failures reach up to three quarters, and notes take what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastkernels.gate.verdicts import middle
from fastkernels.records import Contract, Failure, GateLimits, GateReport, GateRow
from fastkernels.report import gate_words as words
from fastkernels.report.contracts import contracts, under
from fastkernels.report.layout import CPU_WARNING, interval, separation, task_name
from fastkernels.report.markdown import MAX_CHARACTERS, code, plain, whole

_MOST_FAILURES, _MOST_LINES = 5, 20
_OUTCOMES = {"passed": "✅", "failed": "❌", "unclear": "⚠️"}
_HEADER = "| task | case | verdict | change | 95 % of the speed-up | base us | head us | why |\n" + (
    "|---|---|---|--:|--:|--:|--:|---|\n"
)


def text(report: GateReport) -> str:
    """The whole comment, at most MAX_CHARACTERS long."""
    environment = report.environment
    versions = [
        f"torch {environment.torch}",
        *([f"driver {environment.driver}"] if environment.driver else []),
    ]
    made_on = plain(f"{environment.device}, {', '.join(versions)}, {environment.started_at[:10]}")
    warning = f"**{CPU_WARNING}.**\n\n" if environment.device_type == "cpu" else ""
    shown = [row for row in report.rows if words.unclear_or_failing(row)]
    rest = [row for row in report.rows if not words.unclear_or_failing(row) and not words.counted(row)]
    told = (words.advice(report), words.mean(report), words.held_out(report), words.thresholds(report))
    lines = [line for line in told if line]
    found = (
        f"### {_OUTCOMES[report.outcome]} fk gate {words.conclusion(report)}\n\n"
        f"head {plain(report.head)} · base {plain(report.base)}\n\n{warning}"
    )
    every = contracts(report.rows)
    found += _table(shown, report.limits, every, len(found))
    failures = [_failure(row, row.failure) for row in shown if row.failure is not None]
    found += whole(failures, MAX_CHARACTERS * 3 // 4 - len(found), "failures", _MOST_FAILURES)
    if rest:
        folded = _table(rest, report.limits, every, len(found))
        found += f"<details><summary>{len(rest)} other rows</summary>\n\n{folded}</details>\n\n"
    last = (*lines, *report.notes, made_on, *map(str, separation(environment.isolation)))
    return found + whole([f"- {plain(line)}\n" for line in last], MAX_CHARACTERS - len(found), "notes")


def _table(rows: Sequence[GateRow], limits: GateLimits, every: Sequence[Contract], used: int) -> str:
    """Beside `used` characters; nothing without rows."""
    if not rows:
        return ""
    lines = [_line(row, limits, under(row.contract, every)) for row in rows]
    return f"{_HEADER}{whole(lines, MAX_CHARACTERS // 2 - used - len(_HEADER), 'rows')}\n"


def _line(row: GateRow, limits: GateLimits, clock: str) -> str:
    look = middle(row.looks) if row.looks else None
    known = base = head = ""
    if look is not None and look.speedup_ci is not None:
        known = interval(look.speedup_ci)
        base, head = f"{look.base_us:.4g}", f"{look.head_us:.4g}"
    verdict = words.verdict(row, limits)
    verdict = f"**{verdict}**" if words.unclear_or_failing(row) else verdict
    task, case = plain(task_name(row) + clock), plain(f"{row.case} ({row.candidate})")
    cells = (task, case, verdict, words.change(row), known, base, head, plain(row.reason))
    return f"| {' | '.join(cells)} |\n"


def _failure(row: GateRow, failure: Failure) -> str:
    place = f"\nat {failure.file}:{failure.line or ''}".rstrip(":") if failure.file else ""
    output = "\n".join(failure.output.splitlines()[-_MOST_LINES:])
    told = f"{failure.told[:1000]}{place}\n{output[:3000]}".strip()
    what = plain(f"{row.head or ''} {task_name(row)} {row.case} ({row.candidate})")
    return f"<details><summary>{what}</summary><pre>{code(told)}</pre></details>\n\n"
