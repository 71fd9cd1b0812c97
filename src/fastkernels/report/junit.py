"""A gate as JUnit XML: a test suite for each task, a test case for each case.

    SLOW, MISSING, BROKEN    failure          a missed --min-speedup is a failing case of the suite `gate`
    AMBIGUOUS                error            the measurement failed, not the head; so did an interrupted gate
    FAST, SAME, NEW          pass             the numbers are in system-out

Durations of calls are no durations of tests: no case carries a `time`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree as xml

from fastkernels.gate.verdicts import FAILING
from fastkernels.records import GateLimits, GateReport, GateRow, Look
from fastkernels.report import gate_words as words
from fastkernels.report.layout import task_name

# A candidate may print anything; XML 1.0 allows no other control characters, and no lone surrogates.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(report: GateReport) -> str:
    """The whole document."""
    root = xml.Element("testsuites", name="fk gate")
    for task, rows in groupby(report.rows, key=task_name):
        _suite(root, task, [_case(task, row, report.limits) for row in rows])
    whole = [_mean(report)] if report.limits.min_speedup is not None else []
    whole += [] if report.complete else [_interrupted(report)]
    if whole:
        _suite(root, "gate", whole)
    for what in ("tests", "failures", "errors"):
        root.set(what, str(sum(int(suite.get(what, 0)) for suite in root)))
    xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(root, encoding="unicode") + "\n"


def _suite(root: xml.Element, name: str, cases: Sequence[xml.Element]) -> None:
    suite = xml.SubElement(root, "testsuite", name=name, tests=str(len(cases)))
    for what in ("failure", "error"):
        suite.set(f"{what}s", str(sum(case.find(what) is not None for case in cases)))
    suite.extend(cases)


def _case(task: str, row: GateRow, limits: GateLimits) -> xml.Element:
    case = xml.Element("testcase", classname=task, name=_legal(f"{row.case} [{row.candidate}]"))
    if words.unclear_or_failing(row):
        kind = "failure" if row.verdict in FAILING else "error"
        problem = xml.SubElement(case, kind, type=row.verdict, message=_legal(row.reason))
        if row.failure is not None:
            problem.text = _legal(f"{row.failure.told}\n{row.failure.output}".strip())
    out = f"{words.verdict(row, limits)}: {row.reason}\n" + "\n".join(
        (f"{look.lost}; " if look.lost else "") + (look.problem or _numbers(look)) for look in row.looks
    )
    xml.SubElement(case, "system-out").text = _legal(out)
    return case


def _numbers(look: Look) -> str:
    contract = f", contract {look.contract}" if look.contract else ""
    return (
        f"speed-up {look.speedup:.4f}, base {look.base_us:.4g} us, head {look.head_us:.4g} us, "
        f"noise {look.noise_pct:.2f} %, {look.samples} samples{contract}"
    )


def _mean(report: GateReport) -> xml.Element:
    case = xml.Element("testcase", classname="gate", name=f"min-speedup {report.limits.min_speedup:g}")
    found = report.summary.min_speedup
    if found != "met":
        kind = "failure" if found == "missed" else "error"
        xml.SubElement(case, kind, type="min-speedup", message=words.mean(report))
    return case


def _interrupted(report: GateReport) -> xml.Element:
    case = xml.Element("testcase", classname="gate", name="complete")
    xml.SubElement(case, "error", type="interrupted", message=words.conclusion(report))
    return case


def _legal(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
