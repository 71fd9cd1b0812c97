"""Find tasks and cases by name, alias or glob; NotFoundError has the nearest names.

task("L1/rms_norm")  task("rms_norm")  task("silu_and_mul")  task("L1/glu:gelu")
find_tasks(["L1/*norm*", "glu:gelu"], level=1, architecture="llama")
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path

from fastkernels.errors import FileFormatError, NotFoundError, UsageError
from fastkernels.layout import data_dir
from fastkernels.records import Case, Size
from fastkernels.registry import uses
from fastkernels.registry.case_files import read_cases
from fastkernels.registry.load import read_yaml
from fastkernels.registry.models import find_architecture
from fastkernels.registry.schema import Architecture, TaskEntry

# ---------------------------------------------------------------- tasks


@lru_cache
def _tasks(root: Path) -> dict[str, TaskEntry]:
    found: dict[str, TaskEntry] = {}
    names: set[str] = set()
    paths = sorted((root / "tasks").glob("L*/*.yaml"))
    if not paths:
        raise FileFormatError(
            root / "tasks", "", "there is no L*/*.yaml: was it written for another version?"
        )
    for path in paths:
        entry: TaskEntry = read_yaml(path, TaskEntry)
        if entry.id != (expected := f"{path.parent.name}/{path.stem}"):
            raise FileFormatError(path, "", f"id is {entry.id}, not {expected}")
        found[entry.id] = entry
        for name in (entry.id, *(alias.partition(":")[0] for alias in entry.aliases)):
            if name in names:
                raise FileFormatError(path, "", f"{entry.id}: the name '{name}' is taken")
            names.add(name)
        for alias in entry.aliases:
            variant = alias.partition(":")[2]
            if variant and variant not in entry.variants:
                raise FileFormatError(path, "", f"{entry.id}: alias {alias} names no variant")
    return found


def tasks() -> list[TaskEntry]:
    """All tasks, by level and name."""
    return list(_tasks(data_dir("registry")).values())


def task(name: str) -> TaskEntry:
    """The task called `name`: an id, a short name or an alias, optionally `:variant`."""
    found = _match(name)
    if len(found) != 1:
        raise UsageError(f"'{name}' means several tasks: {', '.join(entry.id for entry in found)}")
    return found[0]


def find_tasks(
    patterns: Iterable[str] = (), level: int | None = None, architecture: str | None = None
) -> list[TaskEntry]:
    """Tasks that match any pattern (all without one), cut down to the variants that were asked for.

    level and architecture filter what was found: `--target '*norm*' --level 1` is the norms of level 1.
    """
    patterns = list(patterns)
    found = [entry for pattern in patterns for entry in _match(pattern)] if patterns else tasks()
    if architecture is not None:
        reached = tasks_of(find_architecture(architecture))
        found = [entry for entry in found if entry.id in reached]
    merged: dict[str, TaskEntry] = {}
    for entry in found:
        if level is None or entry.level == level:
            known = merged.get(entry.id)
            merged[entry.id] = _narrow(entry, {**known.variants, **entry.variants}) if known else entry
    order = [entry.id for entry in tasks()]
    return sorted(merged.values(), key=lambda entry: order.index(entry.id))


def no_task(patterns: Iterable[str], level: int | None, architecture: str | None) -> UsageError:
    """What to say where `find_tasks` finds nothing: each of the three is right, but not all of them."""
    asked = [f"--target '{pattern}'" if "*" in pattern else f"--target {pattern}" for pattern in patterns]
    narrowed = [] if level is None else [f"--level {level}"]
    narrowed += [] if architecture is None else [f"--architecture {architecture}"]
    return UsageError(
        f"No task matches {' '.join([*asked, *narrowed])}. See: {' '.join(['fk list tasks', *narrowed])}"
    )


def tasks_of(architecture: Architecture) -> frozenset[str]:
    """Ids of the tasks that an architecture's model file imports, directly or through others."""
    return uses.reached(architecture.task)


def _match(pattern: str) -> list[TaskEntry]:
    if exact := _tasks(data_dir("registry")).get(pattern):
        return [exact]
    name, _, variant = pattern.partition(":")
    found = []
    for entry in tasks():
        alias = next((alias for alias in entry.aliases if alias.partition(":")[0] == name), None)
        if alias:
            found.append(_only(entry, alias.partition(":")[2] or "*"))
        elif fnmatchcase(entry.id, name) or fnmatchcase(entry.name, name) or name == f"L{entry.level}":
            found.append(entry)
    if not found:
        known = [entry.id for entry in tasks()] + [a.partition(":")[0] for e in tasks() for a in e.aliases]
        raise NotFoundError("task", pattern, known, "fk list tasks")
    if not variant:
        return found
    narrowed = [_only(entry, variant) for entry in found]
    narrowed = [entry for entry in narrowed if entry.variants]
    if not narrowed:
        known = [f"{entry.id}:{name}" for entry in found for name in entry.variants]
        raise NotFoundError("variant", pattern, known, f"fk show {found[0].id}")
    return narrowed


def _only(entry: TaskEntry, variant: str) -> TaskEntry:
    return _narrow(entry, {name: cls for name, cls in entry.variants.items() if fnmatchcase(name, variant)})


def _narrow(entry: TaskEntry, variants: dict[str, str]) -> TaskEntry:
    return entry.model_copy(update={"variants": variants})


# ---------------------------------------------------------------- cases


@cache  # of every task: a walk over all would forget the first
def _cases(root: Path, task_id: str) -> list[Case]:
    path = root / "cases" / f"{task_id}.jsonl"
    return read_cases(path) if path.is_file() else []


def cases(
    task_id: TaskEntry | str,
    size: Size | None = None,
    architecture: str | None = None,
    glob: str | None = None,
) -> list[Case]:
    """The cases of a task (and of the variants that the entry or `L1/glu:gelu` was narrowed to).

    glob matches case ids; one without a wildcard matches anywhere in the id. None that is not admitted is
    timed: what its rule lets pass could be a wrong kernel's speed.
    """
    entry = task(task_id) if isinstance(task_id, str) else task_id
    model = find_architecture(architecture).id if architecture else None
    found = [
        case
        for case in _cases(data_dir("registry"), entry.id)
        if case.variant in entry.variants
        and (size is None or case.size == size)
        and (model is None or case.provenance.architecture == model)
    ]
    found = [case.model_copy(update={"timed": False}) if entry.refusals(case.id) else case for case in found]
    return matching(found, glob)


def matching(found: list[Case], glob: str | None) -> list[Case]:
    """Those whose id matches; a glob without a wildcard matches anywhere in the id, None everything."""
    if glob is None:
        return found
    wanted = glob if any(c in glob for c in "*?[") else f"*{glob}*"
    return [case for case in found if fnmatchcase(case.id, wanted)]
