"""The baseline kernels of two commits."""

from __future__ import annotations

from pathlib import Path

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.gate import folders, oracle, revisions, words
from fastkernels.gate.inventory import Filters
from fastkernels.gate.pairs import Comparison, Key, Pair, Version
from fastkernels.records import Case
from fastkernels.runner.kernel_trial.request import Work


def compare(head: str, base: str | None, filters: Filters, scratch: Path) -> Comparison:
    ours = revisions.find(head, Path.cwd())
    if base is None:
        raise UsageError(f"{ours} is a git revision, which needs another one: --base origin/main")
    if words.exists(base):
        raise UsageError(f"{ours} is a git revision and {base} is not: give two folders, or two revisions")
    theirs = revisions.find(base, Path.cwd())
    sides, listed = [], []
    for revision, side in ((ours, "head"), (theirs, "base")):
        exported = revisions.export(revision, scratch / f"{side}-export")
        source = revisions.source(revision, exported, scratch / side)
        sides.append(source)
        listed.append(revisions.cases(revision, source, filters))
    if not any(listed):
        folders.asked_works(filters)  # says which name nobody knows
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
    notes = [*oracle.notes(sides[1], str(theirs))]
    if unknown:
        notes.append(
            f"{', '.join(unknown)}: not known to the fk that runs, so not judged; run that of {ours}"
        )
    if redefined:
        notes.append(
            f"{len(redefined)} cases are defined anew in {ours}; they were judged as {theirs} has them"
        )
    return Comparison(str(ours), str(theirs), (Pair("baseline", *versions),), tuple(notes))
