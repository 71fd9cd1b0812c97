"""Folders of candidates against the baseline, against other folders, or as a revision has them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.gate import revisions, words
from fastkernels.gate.inventory import Filters
from fastkernels.gate.pairs import Comparison, Key, Pair, Version
from fastkernels.layout import shown
from fastkernels.loader.candidates import CandidateSet, discover, is_tree
from fastkernels.runner.kernel_trial.request import KernelsRequest, Work, out_of_reach, plan


def compare(head: str, base: str | None, filters: Filters, scratch: Path) -> Comparison:
    ours = head_sets(head)
    told = Path(head).name or head
    if base is None:
        jobs = _planned(ours, filters, "The head has no")
        pairs = [Pair(s.name, v := _version(s, jobs), Version(v.works)) for s in ours]
        notes = tuple(out_of_reach(ours, {pair.name for pair in pairs if pair.head.works}))
        return Comparison(shown(head), "the baseline", tuple(pairs), notes, task_files(ours))
    if words.exists(base):
        theirs = discover([base])
        name = shown(base)
    else:
        revision = revisions.find(base, words.parts(head)[0].resolve())
        theirs, name = _folder_at(revision, head, scratch), f"{told} of {revision}"
    pairs = paired(ours, theirs, filters)
    judged = {pair.name for pair in pairs if pair.head.works or pair.base.works}
    return Comparison(shown(head), name, pairs, tuple(out_of_reach(ours, judged)), task_files(ours))


def head_sets(head: str) -> list[CandidateSet]:
    if words.is_file(head):
        report = f" A report can be the base: --base {head}" if head.endswith(".json") else ""
        raise UsageError(f"{head}: a file; HEAD is a candidate's folder, or a git revision.{report}")
    return discover([head])


def paired(
    ours: Sequence[CandidateSet], theirs: Sequence[CandidateSet], filters: Filters
) -> tuple[Pair, ...]:
    jobs = _planned([*ours, *theirs], filters, "Neither side has a")
    if len(ours) == len(theirs) == 1:
        return (Pair(ours[0].name, _version(ours[0], jobs), _version(theirs[0], jobs)),)
    heads, bases = ({s.name: _version(s, jobs) for s in sets} for sets in (ours, theirs))
    nothing = Version({})
    names = dict.fromkeys([*heads, *bases])
    return tuple(Pair(name, heads.get(name, nothing), bases.get(name, nothing)) for name in names)


def asked_works(filters: Filters) -> dict[Key, Work]:
    entries = registry.find_tasks(filters.targets, filters.level, filters.architecture)
    return {
        (entry.id, case.id): Work(entry, case)
        for entry in entries
        for case in registry.cases(entry, filters.size, filters.architecture, filters.case_glob)
    }


def task_files(sets: Sequence[CandidateSet]) -> tuple[Path, ...]:
    return tuple(sorted(file for found in sets for file in found.files.values()))


def _folder_at(revision: revisions.Revision, head: str, scratch: Path) -> list[CandidateSet]:
    """The candidates of the same folder (or stack) in a revision; none where it held none yet."""
    top = revision.top.resolve()
    places = [part.resolve() for part in words.parts(head)]
    for place in places:
        if not place.is_relative_to(top):
            raise UsageError(f"{place} lies outside {top}, whose revision {revision} is the base")
    exported = revisions.export(revision, scratch / "base")
    then = [exported / place.relative_to(top) for place in places]
    return discover([os.pathsep.join(map(str, then))]) if all(map(_has_candidates, then)) else []


def _has_candidates(folder: Path) -> bool:
    return folder.is_dir() and (is_tree(folder) or any(is_tree(inside) for inside in folder.iterdir()))


def _planned(
    sets: Sequence[CandidateSet], filters: Filters, nobody: str
) -> dict[tuple[Path, ...], list[Work]]:
    """Layers -> the cases that these candidates change. UsageError where there is nothing at all."""
    stacks = dict.fromkeys(os.pathsep.join(map(str, s.layers)) for s in sets)
    request = KernelsRequest(**filters.model_dump(), candidates=tuple(stacks), device="cpu")
    asked = asked_works(filters)
    try:
        return {job.layers: job.works for job in plan(request)}
    except UsageError:
        if not asked:
            raise  # there are no such cases at all: the plan says which word is wrong
        having = sorted({task for found in sets for task in found.files})
        wanted = ", ".join(dict.fromkeys(task for task, _ in asked))
        raise UsageError(
            f"{nobody} candidate for {wanted}, but for {', '.join(having) or 'nothing'}. "
            "Leave out --target to compare these, or write one: fk stubs"
        ) from None


def _version(found: CandidateSet, jobs: Mapping[tuple[Path, ...], Sequence[Work]]) -> Version:
    works = {(work.entry.id, work.case.id): work for work in jobs.get(found.layers, ())}
    return Version(works, found.layers, found.files)
