"""Find architectures, workloads, suites, steps and devices; NotFoundError has the nearest names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastkernels.errors import FileFormatError, NotFoundError, UsageError
from fastkernels.layout import data_dir
from fastkernels.records import Size
from fastkernels.registry.load import read_json, read_yaml
from fastkernels.registry.schema import (
    Architecture,
    BatchEntry,
    BatchSet,
    Device,
    ModelConfig,
    ProductionClass,
    Suite,
)
from fastkernels.registry.workloads import Workload

# ---------------------------------------------------------------- architectures


@lru_cache
def _architectures(root: Path) -> dict[str, Architecture]:
    found = {}
    for path in sorted((root / "architectures").glob("*.yaml")):
        entry: Architecture = read_yaml(path, Architecture)
        if entry.id != path.stem:
            raise FileFormatError(path, "", f"id is {entry.id}, not {path.stem}")
        if unknown := {name for name in entry.default_config.values() if name not in entry.configs}:
            raise FileFormatError(path, "", f"no configuration {', '.join(unknown)}")
        if not (root / "tasks" / f"{entry.task}.yaml").is_file():
            raise FileFormatError(path, "", f"there is no registry/tasks/{entry.task}.yaml: write it, too")
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
    raise NotFoundError(
        "architecture", name, [entry.id for entry in architectures()], "fk list architectures"
    )


def find_architectures(patterns: Iterable[str] = (), category: str | None = None) -> list[Architecture]:
    """Architectures whose id matches any glob (all without one) and whose category has these words."""
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


def architecture_for(hf_config: dict[str, Any], where: str = "The configuration") -> Architecture:
    """What serves a Hugging Face configuration: by its `architectures` (diffusers: `_class_name`), else by
    its `model_type`. where: it comes from, for the error."""
    classes = _classes(hf_config)
    for entry in architectures():
        if classes & set(entry.hf_architectures):
            return entry
    for entry in architectures():
        if not classes and hf_config.get("model_type") in entry.model_types:
            return entry
    name = ", ".join(sorted(classes)) or hf_config.get("model_type")
    if name is None:
        raise UsageError(f"{where} names neither architectures, model_type nor _class_name: is it a model's?")
    known = [cls for entry in architectures() for cls in entry.hf_architectures]
    raise NotFoundError("architecture for the configuration of", str(name), known, "fk list architectures")


# ---------------------------------------------------------------- workloads, suites, batches, devices


@lru_cache
def _workloads(root: Path) -> list[Workload]:
    return read_yaml(root / "workloads.yaml", list[Workload])


def workloads(patterns: Sequence[str] = (), size: Size | None = None) -> list[Workload]:
    """Workloads whose name matches any glob, in the patterns' order; a name may exist for both sizes."""
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
    found: dict[str, Suite] = {
        path.stem: read_yaml(path, Suite) for path in sorted((root / "suites").glob("*.yaml"))
    }
    for name, entry in found.items():
        if entry.name != name:
            raise FileFormatError(root / "suites" / f"{name}.yaml", "", f"name is {entry.name}, not {name}")
    return found


def suites() -> list[Suite]:
    return list(_suites(data_dir("registry")).values())


def suite(name: str) -> Suite:
    found = _suites(data_dir("registry"))
    if name not in found:
        raise NotFoundError("suite", name, found, "fk eval --help")
    return found[name]


@lru_cache
def _batches(root: Path) -> dict[str, BatchSet]:
    found: dict[str, BatchSet] = {}
    for path in sorted((root / "batches").glob("*.yaml")):
        sets: dict[str, BatchSet] = read_yaml(path, dict[str, BatchSet])
        if taken := sorted(sets.keys() & found.keys()):
            raise FileFormatError(path, "", f"another file has a set of steps called {taken[0]}")
        found |= sets
    return found


def batches(architecture: Architecture, config: ModelConfig) -> list[tuple[str, BatchEntry]]:
    """The steps that a configuration is walked with, by name: of sets that the architecture has itself, else
    of those that several share."""
    known = {**_batches(data_dir("registry")), **architecture.batches}
    if unknown := [name for name in config.walk if name not in known]:
        where = f"registry/architectures/{architecture.id}.yaml or registry/batches"
        raise NotFoundError("set of steps", unknown[0], known, where)
    return [step for name in config.walk for step in known[name].batches.items()]


@lru_cache
def _device(root: Path, slug: str) -> Device | None:
    path = root / "devices" / f"{slug}.yaml"
    return read_yaml(path, Device) if path.is_file() else None


def device(slug: str) -> Device | None:
    """Facts about a device (`cpu`, `nvidia-h200`); None where none were measured."""
    return _device(data_dir("registry"), slug)


@lru_cache
def _production(root: Path) -> tuple[ProductionClass, ...]:
    return tuple(read_yaml(root / "production.yaml", list[ProductionClass]))


def production() -> tuple[ProductionClass, ...]:
    """Classes of kernels that production runs."""
    return _production(data_dir("registry"))


# ---------------------------------------------------------------- files


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a Hugging Face folder, or such a file of another name."""
    path = folder / "config.json" if folder.is_dir() else folder
    config = read_json(path)
    try:
        _classes(config)
    except UsageError as error:
        raise FileFormatError(path, "", str(error)) from None
    return config


def _classes(hf_config: dict[str, Any]) -> set[str]:
    """What a configuration says of its class: names, of diffusers one."""
    classes, named = hf_config.get("architectures"), hf_config.get("_class_name")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(c, str) for c in classes)):
        raise UsageError(f"architectures: {classes!r:.60}: expected names of classes, in a list")
    if named is not None and not isinstance(named, str):
        raise UsageError(f"_class_name: {named!r:.60}: expected the name of a class")
    return set(classes or filter(None, [named]))
