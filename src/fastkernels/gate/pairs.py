"""What is compared with what: from the two words of the command line to pairs of versions.

    head                 base                 compares
    folder               (none)               candidates with the production baseline
    folder               folder               candidates with candidates, by name; one with one by itself
    folder               revision             candidates with the same folder as the revision has it
    folder               report               candidates with those that the report of fk kernels judged
    revision             revision             the baseline kernels of two commits

A word that names something that exists is a folder or a report; any other is a git revision. Only paths are
taken from a report, never its durations: two jobs differ by more than most regressions.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.gate import revisions
from fastkernels.gate.inventory import Filters
from fastkernels.layout import shown
from fastkernels.loader.candidates import CandidateSet, discover, is_tree
from fastkernels.records import Case, KernelReport, Size
from fastkernels.report import json as reports
from fastkernels.runner.plan import KernelsRequest, Work, plan

Key = tuple[str, str]  # task and case
Side = Literal["base", "head"]

_FOLDER = "a candidate's folder, or a git revision"


@dataclass(frozen=True)
class Version:
    """One side of a pair: layers over the baseline of a source (None: ours), and the cases that it has."""

    works: Mapping[Key, Work]
    layers: tuple[Path, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    source: Path | None = None

    @property
    def is_baseline(self) -> bool:
        """Whether this is the baseline itself, which nobody has to judge first."""
        return not self.layers and self.source is None


@dataclass(frozen=True)
class Pair:
    """`name` is what rows call the candidate."""

    name: str
    head: Version
    base: Version

    def side(self, which: Side) -> Version:
        return self.head if which == "head" else self.base


@dataclass(frozen=True)
class Comparison:
    """`head` and `base` as a user would say them."""

    head: str
    base: str
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()  # the head's task files, for the history


@contextlib.contextmanager
def opened(head: str, base: str | None, filters: Filters, size: Size) -> Iterator[Comparison]:
    """What is to be compared; the folders of revisions last as long as the body. `size`: of the cases, where
    neither the filters nor a report says.

    UsageError and NotFoundError say which word cannot be understood, and what to write instead.
    """
    with tempfile.TemporaryDirectory(prefix="fk-gate-", ignore_cleanup_errors=True) as scratch:
        if base is not None and _exists(head) and _is_file(base):
            yield _against_report(head, base, filters)
            return
        filters = filters.model_copy(update={"size": filters.size or size})
        compare = _folders if _exists(head) else _revisions
        yield compare(head, base, filters, Path(scratch))


# ---------------------------------------------------------------- candidates


def _folders(head: str, base: str | None, filters: Filters, scratch: Path) -> Comparison:
    ours = _head(head)
    told = Path(head).name or head
    if base is None:
        jobs = _planned(ours, filters)
        pairs = [Pair(s.name, v := _version(s, jobs), Version(v.works)) for s in ours]
        return Comparison(shown(head), "the baseline", tuple(pairs), sources=_sources(ours))
    if _exists(base):
        theirs = discover([base])
        name = shown(base)
    else:
        revision = revisions.find(base, _folder_of(head))
        theirs, name = _folder_at(revision, head, scratch), f"{told} of {revision}"
    return Comparison(shown(head), name, _paired(ours, theirs, filters), sources=_sources(ours))


def _head(head: str) -> list[CandidateSet]:
    if _is_file(head):
        report = f" A report can be the base: --base {head}" if head.endswith(".json") else ""
        raise UsageError(f"{head}: a file; HEAD is {_FOLDER}.{report}")
    return discover([head])


def _folder_at(revision: revisions.Revision, head: str, scratch: Path) -> list[CandidateSet]:
    """The candidates of the same folder (or stack) in a revision; none where it held none yet."""
    top = revision.top.resolve()
    places = [part.resolve() for part in _parts(head)]
    for place in places:
        if not place.is_relative_to(top):
            raise UsageError(f"{place} lies outside {top}, whose revision {revision} is the base")
    exported = revisions.export(revision, scratch / "base")
    then = [exported / place.relative_to(top) for place in places]
    return discover([os.pathsep.join(map(str, then))]) if all(map(_has_candidates, then)) else []


def _has_candidates(folder: Path) -> bool:
    return folder.is_dir() and (is_tree(folder) or any(is_tree(inside) for inside in folder.iterdir()))


def _against_report(head: str, path: str, filters: Filters) -> Comparison:
    ours = _head(head)
    report = reports.load(path)
    if not isinstance(report, KernelReport):
        raise UsageError(f"{path}: a report of fk {report.kind}; --base needs one of fk kernels")
    paths = [str(p) for p in report.request.get("candidates") or ()]
    if not paths:
        raise UsageError(
            f"{path} names no folders of candidates (it judged the workspace or the baseline). "
            "Give the base's folder or a git revision: --base DIR, --base origin/main"
        )
    gone = [p for p in paths if not _exists(p)]
    if gone:
        raise UsageError(
            f"{path}: {', '.join(gone)} is not here (paths are relative to {Path.cwd()}). The base is "
            "measured again, so its files must exist: run where the report was made, or --base DIR"
        )
    theirs = discover(paths)
    if {s.layers for s in ours} & {s.layers for s in theirs}:
        raise UsageError(
            f"{path} judged {head} itself, whose files are now the head's: there is no base to measure. "
            "Compare with the folder as a commit has it: --base origin/main"
        )
    filters = _as_reported(filters, report)
    known = {s.name for s in ours} & {s.name for s in theirs}
    if not known and len(ours) == 1 and len(theirs) > 1:
        names = ", ".join(s.name for s in theirs)
        raise UsageError(f"{path} judged {names}, and none is called {ours[0].name}. Name one: --base DIR")
    pairs, notes = _with_rows(_paired(ours, theirs, filters), report, filters)
    notes = (*notes, f"{path} names the base; its durations are not used, the base was measured again")
    return Comparison(shown(head), f"the candidates of {shown(path)}", pairs, notes, _sources(ours))


def _as_reported(filters: Filters, report: KernelReport) -> Filters:
    """What was not asked for is as the report has it."""
    asked = report.request
    return Filters(
        targets=filters.targets or tuple(asked.get("targets") or ()),
        level=filters.level or asked.get("level"),
        architecture=filters.architecture or asked.get("architecture"),
        case_glob=filters.case_glob or asked.get("case_glob"),
        size=filters.size or asked.get("size"),
    )


def _with_rows(
    pairs: Sequence[Pair], report: KernelReport, filters: Filters
) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """The pairs with what passed in the report, so that a case that went missing since is MISSING."""
    asked = _asked(filters)
    found, lost = [], 0
    for pair in pairs:
        works = dict(pair.base.works)
        names = {row.candidate for row in report.rows}
        passed = [
            (row.task, row.case)
            for row in report.rows
            if row.verdict == "PASSED" and (row.candidate == pair.name or len(names) == 1)
        ]
        for key in passed:
            if key in asked:
                works.setdefault(key, asked[key])
        lost += sum(not _is_registered(key) for key in passed)
        base = Version(works, pair.base.layers, pair.base.files)
        found.append(Pair(pair.name, pair.head, base))
    note = f"{lost} rows of the report are of cases that are not registered any more; they are not compared"
    return tuple(found), (note,) if lost else ()


def _asked(filters: Filters) -> dict[Key, Work]:
    entries = registry.find_tasks(filters.targets, filters.level, filters.architecture)
    return {
        (entry.id, case.id): Work(entry, case)
        for entry in entries
        for case in registry.cases(entry, filters.size, filters.architecture, filters.case_glob)
    }


def _is_registered(key: Key) -> bool:
    known = {entry.id: entry for entry in registry.tasks()}
    return key[0] in known and any(case.id == key[1] for case in registry.cases(known[key[0]]))


def _paired(
    ours: Sequence[CandidateSet], theirs: Sequence[CandidateSet], filters: Filters
) -> tuple[Pair, ...]:
    jobs = _planned([*ours, *theirs], filters)
    if len(ours) == len(theirs) == 1:
        return (Pair(ours[0].name, _version(ours[0], jobs), _version(theirs[0], jobs)),)
    heads, bases = ({s.name: _version(s, jobs) for s in sets} for sets in (ours, theirs))
    nothing = Version({})
    names = dict.fromkeys([*heads, *bases])
    return tuple(Pair(name, heads.get(name, nothing), bases.get(name, nothing)) for name in names)


def _planned(sets: Sequence[CandidateSet], filters: Filters) -> dict[tuple[Path, ...], list[Work]]:
    """Layers -> the cases that these candidates change. UsageError where there is nothing at all."""
    stacks = dict.fromkeys(os.pathsep.join(map(str, s.layers)) for s in sets)
    request = KernelsRequest(**filters.model_dump(), candidates=tuple(stacks), device="cpu")
    asked = _asked(filters)
    try:
        return {job.layers: job.works for job in plan(request)}
    except UsageError:
        if not asked:
            raise  # there are no such cases at all: the plan says which word is wrong
        having = sorted({task for found in sets for task in found.files})
        wanted = ", ".join(dict.fromkeys(task for task, _ in asked))
        raise UsageError(
            f"Neither side has a candidate for {wanted}, but for {', '.join(having) or 'nothing'}. "
            "Leave out --target to compare these, or write one: fk stubs"
        ) from None


def _version(found: CandidateSet, jobs: Mapping[tuple[Path, ...], Sequence[Work]]) -> Version:
    works = {(work.entry.id, work.case.id): work for work in jobs.get(found.layers, ())}
    return Version(works, found.layers, found.files)


def _sources(sets: Sequence[CandidateSet]) -> tuple[Path, ...]:
    return tuple(sorted(file for found in sets for file in found.files.values()))


# ---------------------------------------------------------------- revisions


def _revisions(head: str, base: str | None, filters: Filters, scratch: Path) -> Comparison:
    ours = revisions.find(head, Path.cwd())
    if base is None:
        raise UsageError(f"{ours} is a git revision, which needs another one: --base origin/main")
    if _exists(base):
        raise UsageError(f"{ours} is a git revision and {base} is not: give two folders, or two revisions")
    theirs = revisions.find(base, Path.cwd())
    sides, listed = [], []
    for revision, side in ((ours, "head"), (theirs, "base")):
        exported = revisions.export(revision, scratch / f"{side}-export")
        source = revisions.source(revision, exported, scratch / side)
        sides.append(source)
        listed.append(revisions.cases(revision, source, filters))
    if not any(listed):
        _asked(filters)  # says which name nobody knows
        raise UsageError(f"No case matches in {ours} or {theirs}. See: fk list tasks; fk show TASK")
    tasks = {entry.id: entry for entry in registry.tasks()}
    # One definition for both sides: the base's, or a head could make its own exam easier.
    heads, bases = ({(c.task, c.id): c for c in found} for found in listed)
    merged: dict[Key, Case] = {**heads, **bases}
    redefined = [key for key in heads.keys() & bases.keys() if heads[key] != bases[key]]
    works = {key: Work(tasks[key[0]], case) for key, case in merged.items() if key[0] in tasks}
    versions = [
        Version({k: works[k] for c in found if (k := (c.task, c.id)) in works}, source=source)
        for found, source in zip(listed, sides)
    ]
    unknown = sorted({task for task, _ in merged} - tasks.keys())
    notes = []
    if unknown:
        notes.append(
            f"{', '.join(unknown)}: not known to the fk that runs, so not judged; run that of {ours}"
        )
    if redefined:
        notes.append(
            f"{len(redefined)} cases are defined anew in {ours}; they were judged as {theirs} has them"
        )
    return Comparison(str(ours), str(theirs), (Pair("baseline", *versions),), tuple(notes))


# ---------------------------------------------------------------- words


def _parts(word: str) -> list[Path]:
    return [Path(part).expanduser() for part in word.split(os.pathsep) if part]


def _exists(word: str) -> bool:
    """Whether the word means files: a path that exists, or looks like nothing but a path."""
    parts = _parts(word)
    return bool(parts) and (
        parts[0].exists() or word.startswith((".", "/", "~")) or word.endswith(("/", ".json"))
    )


def _is_file(word: str) -> bool:
    return Path(word).expanduser().is_file() or (word.endswith(".json") and not Path(word).is_dir())


def _folder_of(word: str) -> Path:
    return _parts(word)[0].resolve()
