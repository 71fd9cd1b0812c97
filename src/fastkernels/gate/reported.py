"""Folders against the candidates that a report of `fk kernels` judged: their paths, never their durations.

What lies there is measured again, so it must be what was judged: the report has a number of its content.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ConfigDict, ValidationError

from fastkernels import registry
from fastkernels.errors import FileFormatError, UsageError
from fastkernels.gate import folders, words
from fastkernels.gate.inventory import Filters
from fastkernels.gate.pairs import Comparison, Key, Pair
from fastkernels.layout import shown
from fastkernels.loader.candidates import CandidateSet, discover
from fastkernels.loader.digest import digest
from fastkernels.records import Contract, Environment, KernelReport
from fastkernels.report import json as reports


def compare(head: str, path: str, filters: Filters) -> Comparison:
    ours = folders.head_sets(head)
    report = reports.load_kernels(path)
    asked = _asked(path, report)
    paths = list(asked.candidates)
    if not paths:
        raise UsageError(
            f"{path} names no folders of candidates (it judged the workspace or the baseline). "
            "Give the base's folder or a git revision: --base DIR, --base origin/main"
        )
    gone = [p for p in paths if not all(part.exists() for part in words.parts(p))]
    if gone:
        raise UsageError(
            f"{path}: {', '.join(gone)} is not here (paths are relative to {Path.cwd()}). The base is "
            "measured again, so its files must exist: run where the report was made, or --base DIR"
        )
    theirs = discover(paths)
    _require_as_judged(path, report, theirs)
    if {s.layers for s in ours} & {s.layers for s in theirs}:
        raise UsageError(
            f"{path} judged {head} itself, whose files are now the head's: there is no base to measure. "
            "Compare with the folder as a commit has it: --base origin/main"
        )
    filters = _as_reported(filters, asked)
    known = {s.name for s in ours} & {s.name for s in theirs}
    if not known and len(ours) == 1 and len(theirs) > 1:
        names = ", ".join(s.name for s in theirs)
        raise UsageError(f"{path} judged {names}, and none is called {ours[0].name}. Name one: --base DIR")
    pairs, notes = _with_rows(folders.paired(ours, theirs, filters), report, filters)
    notes = (*notes, f"{path} names the base; its durations are not used, the base was measured again")
    base = f"the candidates of {shown(path)}"
    return Comparison(shown(head), base, pairs, notes, folders.task_files(ours), report)


def elsewhere(report: KernelReport | None, machine: Environment, contract: Contract) -> tuple[str, ...]:
    """A note where a report judged its candidates on another device or under another contract."""
    if report is None:
        return ()
    then = (report.environment.device, report.request.get("contract"))
    if then == (machine.device, contract):
        return ()
    return (
        f"the report judged its candidates on {then[0]} under {then[1]}, they are compared on "
        f"{machine.device} under {contract}: what passed there need not pass here",
    )


def _require_as_judged(path: str, report: KernelReport, theirs: Sequence[CandidateSet]) -> None:
    """UsageError unless the candidates' files are those that the report judged."""
    other = "or name the base as it was: --base DIR, --base origin/main"
    again = f"Judge it anew (fk kernels --candidates DIR --json {path}), {other}"
    if not report.candidates:
        raise UsageError(
            f"{path} does not say what the files of its candidates were (an older fk wrote it), so nobody "
            f"knows whether they are the same now. {again}"
        )
    then = {judged.name: judged.sha256 for judged in report.candidates}
    now = {found.name: digest(found.layers) for found in theirs}
    changed = [
        f"{found.name} ({os.pathsep.join(map(shown, found.layers))})"
        for found in theirs
        if now[found.name] != then.get(found.name)
    ]
    changed += [f"{name} (is gone)" for name in then if name not in now]
    if changed:
        raise UsageError(
            f"{path}: these files are not those that it judged any more: {', '.join(changed)}. {again}"
        )


class _Asked(Filters):
    """Of a report's request, what a gate asks again."""

    model_config = ConfigDict(extra="ignore")

    candidates: tuple[str, ...] = ()


def _asked(path: str, report: KernelReport) -> _Asked:
    try:
        return _Asked.model_validate(report.request)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        where = ".".join(map(str, ("request", *first["loc"])))
        raise FileFormatError(path, "", f"{where}: {first['msg']}") from None


def _as_reported(filters: Filters, asked: _Asked) -> Filters:
    """What was not asked for is as the report has it."""
    return Filters(**{name: getattr(filters, name) or getattr(asked, name) for name in Filters.model_fields})


def _with_rows(
    pairs: Sequence[Pair], report: KernelReport, filters: Filters
) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """The pairs with what passed in the report, so that a case that went missing since is MISSING."""
    asked = folders.asked_works(filters)
    names = {row.candidate for row in report.rows}
    found, lost = [], 0
    for pair in pairs:
        works = dict(pair.base.works)
        passed = [
            (row.task, row.case)
            for row in report.rows
            if row.verdict == "PASSED" and (row.candidate == pair.name or len(names) == 1)
        ]
        for key in passed:
            if key in asked:
                works.setdefault(key, asked[key])
        lost += sum(not _is_registered(key) for key in passed)
        found.append(replace(pair, base=replace(pair.base, works=works)))
    note = f"{lost} rows of the report are of cases that are not registered any more; they are not compared"
    return tuple(found), (note,) if lost else ()


def _is_registered(key: Key) -> bool:
    known = {entry.id: entry for entry in registry.tasks()}
    return key[0] in known and any(case.id == key[1] for case in registry.cases(known[key[0]]))
