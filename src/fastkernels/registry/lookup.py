"""Find things by name, alias or glob; a name that matches nothing raises NotFoundError with the nearest ones.

    task("L1/rms_norm")  task("rms_norm")  task("silu_and_mul")  task("L1/glu:gelu")
    find_tasks(["L1/*norm*", "glu:gelu"], level=1, architecture="llama")
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastkernels.errors import FileFormatError, NotFoundError, UsageError
from fastkernels.layout import data_dir
from fastkernels.records import Case, Size
from fastkernels.registry import uses
from fastkernels.registry.load import read_jsonl, read_yaml
from fastkernels.registry.schema import (
    Architecture,
    BatchSet,
    Device,
    Suite,
    TaskEntry,
    Workload,
)

# ---------------------------------------------------------------- tasks


@lru_cache
def _tasks(root: Path) -> dict[str, TaskEntry]:
    path = root / "tasks.yaml"
    entries: list[TaskEntry] = read_yaml(path, list[TaskEntry])
    names: set[str] = set()
    for entry in entries:
        for name in (entry.id, *(alias.partition(":")[0] for alias in entry.aliases)):
            if name in names:
                raise FileFormatError(path, "", f"{entry.id}: the name '{name}' is taken")
            names.add(name)
        for alias in entry.aliases:
            variant = alias.partition(":")[2]
            if variant and variant not in entry.variants:
                raise FileFormatError(path, "", f"{entry.id}: alias {alias} names no variant")
    return {entry.id: entry for entry in sorted(entries, key=lambda entry: entry.level)}


def tasks() -> list[TaskEntry]:
    """All tasks, by level, in the order of tasks.yaml."""
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


def tasks_of(architecture: Architecture) -> set[str]:
    """Ids of the tasks that an architecture's model file imports, directly or through others."""
    return uses.reached(architecture.task)


def _match(pattern: str) -> list[TaskEntry]:
    name, _, variant = pattern.partition(":")
    found = []
    for entry in tasks():
        aliases = dict(alias.partition(":")[::2] for alias in entry.aliases)
        if name in aliases:
            found.append(_only(entry, aliases[name] or "*"))
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


@lru_cache
def _cases(root: Path, task_id: str) -> list[Case]:
    path = root / "cases" / f"{task_id}.jsonl"
    found = read_jsonl(path, Case) if path.is_file() else []
    ids: set[str] = set()
    for number, case in enumerate(found, start=1):
        if case.task != task_id or case.id in ids:
            problem = f"id {case.id} is taken" if case.id in ids else f"a case of {case.task}"
            raise FileFormatError(path, f"line {number}", problem)
        ids.add(case.id)
    return found


def cases(
    task_id: TaskEntry | str, size: Size | None = None, architecture: str | None = None, glob: str | None = None
) -> list[Case]:
    """The cases of a task (and of the variants that the entry or `L1/glu:gelu` was narrowed to).

    glob matches case ids; one without a wildcard matches anywhere in the id.
    """
    entry = task(task_id) if isinstance(task_id, str) else task_id
    wanted = None if glob is None else glob if any(c in glob for c in "*?[") else f"*{glob}*"
    model = find_architecture(architecture).id if architecture else None
    return [
        case
        for case in _cases(data_dir("registry"), entry.id)
        if case.variant in entry.variants
        and (size is None or case.size == size)
        and (model is None or case.provenance.architecture == model)
        and (wanted is None or fnmatchcase(case.id, wanted))
    ]


# ---------------------------------------------------------------- architectures


@lru_cache
def _architectures(root: Path) -> dict[str, Architecture]:
    found = {}
    for path in sorted((root / "architectures").glob("*.yaml")):
        entry: Architecture = read_yaml(path, Architecture)
        unknown = {name for name in entry.default_config.values() if name not in entry.configs}
        if entry.id != path.stem or unknown:
            problem = f"no configuration {', '.join(unknown)}" if unknown else f"id is {entry.id}, not {path.stem}"
            raise FileFormatError(path, "", problem)
        found[entry.id] = entry
    return found


def architectures() -> list[Architecture]:
    return list(_architectures(data_dir("registry")).values())


def find_architecture(name: str) -> Architecture:
    """By id (`llama`) or by a registered checkpoint (`meta-llama/Llama-3.1-8B-Instruct`)."""
    for entry in architectures():
        checkpoints = {entry.checkpoint, *(config.checkpoint for config in entry.configs.values())}
        if name == entry.id or name in checkpoints:
            return entry
    raise NotFoundError("architecture", name, [entry.id for entry in architectures()], "fk list architectures")


def find_architectures(patterns: Iterable[str] = (), category: str | None = None) -> list[Architecture]:
    """Architectures whose id matches any glob (all without one) and whose category contains the given words."""
    found: dict[str, Architecture] = {}
    for pattern in patterns or ["*"]:
        matches = [entry for entry in architectures() if fnmatchcase(entry.id, pattern)]
        for entry in matches or [find_architecture(pattern)]:
            found[entry.id] = entry
    if category is None:
        return list(found.values())
    chosen = [entry for entry in found.values() if category.lower() in entry.category.lower()]
    if not chosen:
        known = [entry.category for entry in architectures()]
        raise NotFoundError("category", category, known, "fk list architectures")
    return chosen


def architecture_for(hf_config: dict[str, Any]) -> Architecture:
    """The architecture that serves a Hugging Face configuration, by its `architectures`, else its `model_type`."""
    classes = set(hf_config.get("architectures") or ())
    for entry in architectures():
        if classes & set(entry.hf_architectures):
            return entry
    for entry in architectures():
        if not classes and hf_config.get("model_type") in entry.model_types:
            return entry
    name = ", ".join(sorted(classes)) or str(hf_config.get("model_type"))
    known = [cls for entry in architectures() for cls in entry.hf_architectures]
    raise NotFoundError("architecture for the configuration of", name, known, "fk list architectures")


# ---------------------------------------------------------------- workloads, suites, batches, devices


@lru_cache
def _workloads(root: Path) -> list[Workload]:
    return read_yaml(root / "workloads.yaml", list[Workload])


def workloads(patterns: Sequence[str] = (), size: Size | None = None) -> list[Workload]:
    """Workloads whose name matches any glob, in the order of the patterns; the same name exists for several sizes."""
    known = [workload for workload in _workloads(data_dir("registry")) if size in (None, workload.size)]
    if not patterns:
        return known
    found: list[Workload] = []
    for pattern in patterns:
        matches = [workload for workload in known if fnmatchcase(workload.name, pattern)]
        if not matches:
            raise NotFoundError("workload", pattern, [w.name for w in known], "fk list workloads")
        found += [workload for workload in matches if workload not in found]
    return found


@lru_cache
def _suites(root: Path) -> dict[str, Suite]:
    found: dict[str, Suite] = {path.stem: read_yaml(path, Suite) for path in sorted((root / "suites").glob("*.yaml"))}
    for name, entry in found.items():
        if entry.name != name:
            raise FileFormatError(root / "suites" / f"{name}.yaml", "", f"name is {entry.name}, not {name}")
    return found


def suites() -> list[Suite]:
    return list(_suites(data_dir("registry")).values())


def suite(name: str) -> Suite:
    found = _suites(data_dir("registry"))
    if name not in found:
        raise NotFoundError("suite", name, found, "fk list workloads")
    return found[name]


@lru_cache
def _batches(root: Path) -> dict[str, BatchSet]:
    return read_yaml(root / "batches.yaml", dict[str, BatchSet])


def batch_set(name: str) -> BatchSet:
    found = _batches(data_dir("registry"))
    if name not in found:
        raise NotFoundError("batch set", name, found, "registry/batches.yaml")
    return found[name]


@lru_cache
def _device(root: Path, slug: str) -> Device | None:
    path = root / "devices" / f"{slug}.yaml"
    return read_yaml(path, Device) if path.is_file() else None


def device(slug: str) -> Device | None:
    """Facts about a device (`cpu`, `nvidia-h200`); None where none were measured."""
    return _device(data_dir("registry"), slug)


# ---------------------------------------------------------------- files


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a Hugging Face folder."""
    path = folder / "config.json" if folder.is_dir() else folder
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(path, "", error.strerror or str(error)) from error
    except json.JSONDecodeError as error:
        raise FileFormatError(path, f"line {error.lineno}", error.msg) from None
