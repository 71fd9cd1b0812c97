"""A gate as Markdown, for a comment on a pull request.

What fails or is unclear comes first and open, everything else folded. Text of a candidate (its messages, what
it printed) is escaped and fenced in HTML: it can neither format the comment nor mention anybody.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from fastkernels.gate.verdicts import middle
from fastkernels.records import Contract, GateReport, GateRow
from fastkernels.report import gate_words as words
from fastkernels.report.contracts import CPU_WARNING, contracts, under
from fastkernels.report.layout import separation

MAX_CHARACTERS = 60_000  # GitHub takes 65,536 in a comment
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
    made_on = _plain(f"{environment.device}, {', '.join(versions)}, {environment.started_at[:10]}")
    warning = f"**{CPU_WARNING}.**\n\n" if environment.device_type == "cpu" else ""
    shown = [row for row in report.rows if words.unclear_or_failing(row)]
    rest = [row for row in report.rows if not words.unclear_or_failing(row) and not words.counted(row)]
    told = (words.advice(report), words.mean(report), words.held_out(report), words.thresholds(report))
    lines = [line for line in told if line]
    found = (
        f"### {_OUTCOMES[report.outcome]} fk gate {words.conclusion(report)}\n\n"
        f"head {_plain(report.head)} · base {_plain(report.base)}\n\n{warning}"
    )
    every = contracts(report.rows)
    found += _table(shown, every, len(found))
    found += _failures(shown)
    if rest:
        folded = _table(rest, every, len(found))
        found += f"<details><summary>{len(rest)} other rows</summary>\n\n{folded}</details>\n\n"
    found += "".join(
        f"- {_plain(line)}\n"
        for line in (*lines, *report.notes, made_on, *map(str, separation(environment.isolation)))
    )
    return found if len(found) <= MAX_CHARACTERS else found[:MAX_CHARACTERS] + "\n\n… cut\n"


def _table(rows: Sequence[GateRow], every: Sequence[Contract], used: int) -> str:
    """The rows that fit beside `used` characters; how many were left out is said."""
    found = _HEADER if rows else ""
    for number, row in enumerate(rows):
        line = _line(row, under(row.contract, every))
        if used + len(found) + len(line) > MAX_CHARACTERS // 2:
            return f"{found}\n… and {len(rows) - number} more rows: see the JSON or JUnit report\n\n"
        found += line
    return f"{found}\n" if found else ""


def _line(row: GateRow, clock: str) -> str:
    look = middle(row.looks) if row.looks else None
    interval = base = head = ""
    if look is not None and look.speedup_ci is not None:
        interval = f"{look.speedup_ci[0]:.3f} .. {look.speedup_ci[1]:.3f}"
        base, head = f"{look.base_us:.4g}", f"{look.head_us:.4g}"
    verdict = f"**{row.verdict}**" if words.unclear_or_failing(row) else row.verdict
    task, case = _plain(words.place(row) + clock), _plain(f"{row.case} ({row.candidate})")
    cells = (task, case, verdict, words.change(row), interval, base, head, _plain(row.reason))
    return f"| {' | '.join(cells)} |\n"


def _failures(rows: Sequence[GateRow]) -> str:
    failing = [row for row in rows if row.failure is not None]
    found = ""
    for row in failing[:_MOST_FAILURES]:
        assert row.failure is not None
        place = f"\nat {row.failure.file}:{row.failure.line or ''}".rstrip(":") if row.failure.file else ""
        output = "\n".join(row.failure.output.splitlines()[-_MOST_LINES:])
        told = f"{row.failure.message[:1000]}{place}\n{output[:3000]}".strip()
        found += f"<details><summary>{_plain(row.head or '')} {_plain(words.place(row))} {_plain(row.case)}"
        found += f"</summary><pre>{_code(told)}</pre></details>\n\n"
    if len(failing) > _MOST_FAILURES:
        found += f"… and {len(failing) - _MOST_FAILURES} more failures: see the JSON or JUnit report\n\n"
    return found


_SPECIAL = str.maketrans({c: f"&#{ord(c)};" for c in "|*_`[]~@#\\"})


def _plain(text: str) -> str:
    """One line without any markup of its own."""
    return " ".join(html.escape(text).split()).translate(_SPECIAL)


def _code(text: str) -> str:
    """Inside <pre>: a blank line would end the HTML block, an @ would mention somebody."""
    lines = [line if line.strip() else "&nbsp;" for line in html.escape(text).splitlines()]
    return "\n".join(lines).replace("@", "&#64;").replace("`", "&#96;")
