"""What `fk audit` reports come to: which tasks may be judged by, and the margin of every case.

    python benchmarks/admission.py REPORT... --out benchmarks/h200/audit_full.json.gz --resume

The reports are parts of one question, each of other cases. Kept are margins and what is not good: the
mutants of a thousand cases that fail as they must would be tens of megabytes. --resume keeps the cases that
`--out` holds, the registry has, and these reports do not audit; each row says with which revision and on what
it was audited.

A task is admitted anew from all its rows, as far as they go: `left` says how many cases of which tasks are
not there, of those that `fk audit` takes of the audited levels and sizes. For that a row keeps the names of
its checks that another case has to show (`elsewhere`), and which it shows itself: a number in the list
`shown`, as most cases of a task show the same.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from committed import write

from fastkernels import registry
from fastkernels.audit.admission import admit
from fastkernels.audit.run import selected
from fastkernels.records import AuditCheck, AuditReport, AuditRow, Environment, Size
from fastkernels.report.json import text_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="add to the cases of --out")
    arguments = parser.parse_args()
    resumed = arguments.resume and arguments.out.is_file()
    before = of_today(json.loads(text_of(arguments.out))) if resumed else None
    found = summary([AuditReport.model_validate_json(path.read_text()) for path in arguments.reports], before)
    write(found, arguments.out)
    print(
        {key: value for key, value in found.items() if key == "left" or not isinstance(value, (list, dict))}
    )


def of_today(before: dict[str, Any]) -> dict[str, Any]:
    """Without the rows of cases that the registry no longer has."""
    known = {(case.task, case.id) for task in registry.tasks() for case in registry.cases(task)}
    return {**before, "rows": [row for row in before["rows"] if (row["task"], row["case"]) in known]}


def summary(reports: Sequence[AuditReport], before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Parts of one audit. before: an earlier summary, whose cases stay unless they are audited again."""
    before = before or {"rows": [], "names": [], "shown": [], "unaudited": []}
    sets = [[before["names"][place] for place in places] for places in before["shown"]]
    found = {(row["task"], row["case"]): {**row, "shown": sets[row["shown"]]} for row in before["rows"]}
    for report in reports:
        found |= {(row.task, row.case): _told(row, report.environment) for row in report.rows}
    rows = [found[key] for key in sorted(found)]
    # What could not be audited is told as "L1/rope case: reason".
    reasons = [*before["unaudited"], *(reason for report in reports for reason in report.unaudited)]
    unaudited = {reason.partition(": ")[0]: reason for reason in reasons}
    shown = sorted({tuple(row["shown"]) for row in rows})
    names = sorted(set().union(*shown))
    place = {name: at for at, name in enumerate(names)}
    cases = _registered(found)
    audited = Counter(task for task, case in found if case in cases[task])
    left = {task: len(its) - audited[task] for task, its in cases.items() if len(its) > audited[task]}
    tasks = [
        {
            **admit(task, [_audited(row, task not in left) for row in its]).model_dump(mode="json"),
            "cases": audited[task],
            "of": len(cases[task]),
        }
        for task, its in groupby(rows, key=lambda row: row["task"])
    ]
    return {
        "kind": "admission",
        "cases": len(rows),
        "checks": sum(row["checks"] for row in rows),
        "not_admitted": sum(not task["admitted"] for task in tasks),
        "refused": sum(len(task["refused"]) for task in tasks),
        "smallest_margin": min((row["margin"] for row in rows if row["margin"] is not None), default=None),
        "left": left,
        "tasks": tasks,
        "rows": [{**row, "shown": shown.index(tuple(row["shown"]))} for row in rows],
        "names": names,
        "shown": [[place[name] for name in each] for each in shown],
        "complete": not left,
        "unaudited": [reason for case, reason in unaudited.items() if tuple(case.split()) not in found],
        # Of the machine that began; each row has its own.
        "environment": before.get("environment") or reports[0].environment.model_dump(mode="json"),
    }


def _registered(found: Collection[tuple[str, str]]) -> dict[str, set[str]]:
    """Cases by task that `fk audit` takes, of the levels that any of these has, and of its sizes there; of
    all sizes where none is known."""
    sizes: dict[int, set[Size]] = defaultdict(set)
    for task in {task for task, _ in found}:
        sizes[int(task[1])] |= {case.size for case in registry.cases(task) if (task, case.id) in found}
    return {
        entry.id: {case.id for size in known or get_args(Size) for case in selected(entry, size)}
        for level, known in sizes.items()
        for entry in registry.find_tasks((), level)
    }


def _told(row: AuditRow, environment: Environment) -> dict[str, Any]:
    return {
        **row.model_dump(exclude={"checks"}, mode="json"),
        "checks": len(row.checks),
        "bad": [check.model_dump(mode="json") for check in row.checks if check.good is False],
        "elsewhere": sorted({check.name for check in row.checks if check.elsewhere}),
        "shown": sorted({check.name for check in row.checks if check.good}),
        "revision": environment.git_revision,
        "device": environment.device,
    }


def _audited(row: Mapping[str, Any], is_whole: bool) -> AuditRow:
    """The row that was told, with those of its checks that `admit` asks for. Unless the task `is_whole`, a
    case that is not there may show what this one leaves to another."""
    shown = [AuditCheck(kind="mutant", name=name, good=True) for name in row["shown"]]
    open_ = [
        AuditCheck(kind="mutant", name=name, good=None, elsewhere=True)
        for name in row["elsewhere"]
        if is_whole
    ]
    bad = [AuditCheck.model_validate(check) for check in row["bad"]]
    fields = {name: row[name] for name in AuditRow.model_fields}
    return AuditRow.model_validate({**fields, "checks": (*shown, *open_, *bad)})


if __name__ == "__main__":
    main()
