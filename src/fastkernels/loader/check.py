"""`fk check`: what can be said about candidates without running or importing them.

syntax            the file does not parse
unreadable        there is no file: a folder with its name, a link that leads nowhere, a pipe
excessive         longer than files.MAX_BYTES, or nested deeper than source.MAX_DEPTH, to be looked over
unknown-task      a file at a task's place, not a registered task and imported (relatively) by no file
absolute-import   a file of the candidate is imported absolutely, which does not reach it
missing-class     none of the task's classes is defined
init-signature    __init__ cannot be called as the baseline's
forward-signature forward cannot be called as the baseline's
others            forbidden.py: torch-op, exit, signal, global-state, introspection, patch, harness; warnings:
                  dynamic-code, thread, side-stream, silent-fallback
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastkernels import registry
from fastkernels.errors import NotFoundError, UsageError
from fastkernels.layout import data_dir
from fastkernels.loader import candidates, forbidden, signatures, source
from fastkernels.registry.schema import TaskEntry


@dataclass(frozen=True)
class Finding:
    file: Path
    line: int
    rule: str
    message: str
    severity: Literal["error", "warning"] = "error"


def check(path: Path) -> list[Finding]:
    """Findings on a candidate tree, a folder of trees, or one file of a tree, by file and line.

    UsageError for a file that is no Python."""
    path = Path(path)
    if os.path.isfile(path):
        if path.suffix != ".py":
            problem = "no Python file. Give a task file, like L1/rms_norm.py, or its candidate"
            raise UsageError(f"{path}: {problem}")
        tree = _tree_of(path.resolve())
        found = list(_check_file(path.resolve(), tree, candidates.unknown_files(tree)))
    else:
        trees = [layer for group in candidates.discover([path]) for layer in group.layers]
        found = [
            finding
            for tree in trees
            for unknown in [candidates.unknown_files(tree)]
            for file in candidates.python_files(tree)
            for finding in _check_file(file, tree, unknown)
        ]
    return sorted(found, key=lambda finding: (finding.file, finding.line, finding.rule))


def _tree_of(file: Path) -> Path:
    """The folder above the file's L1 .. L4; its own folder if it lies in none."""
    return next((parent.parent for parent in file.parents if parent.name in source.LEVELS), file.parent)


def _check_file(file: Path, tree: Path, unknown: Sequence[Path]) -> Iterator[Finding]:
    try:
        parsed = source.parse(file)
    except SyntaxError as error:
        kinds = {source.Unreadable: "unreadable", source.Excessive: "excessive"}
        yield Finding(file, error.lineno or 1, kinds.get(type(error), "syntax"), error.msg)
        return
    entry = _entry(file, tree)
    if entry is not None:
        yield from _check_task(file, parsed, entry)
    elif file.parent == tree or file in unknown:
        yield Finding(file, 1, "unknown-task", _unknown(file, tree))
    for line, name in source.absolute_imports(parsed):
        if (advice := source.relative_only(name, tree)) and importlib.util.find_spec(name) is None:
            yield Finding(file, line, "absolute-import", f"there is no module '{name}'. {advice}")
    for rule, line, message, severity in forbidden.violations(parsed):
        yield Finding(file, line, rule, message, "error" if severity == "error" else "warning")


def _entry(file: Path, tree: Path) -> TaskEntry | None:
    name = file.relative_to(tree).with_suffix("").as_posix()
    return next((entry for entry in registry.tasks() if entry.id == name), None)


def _unknown(file: Path, tree: Path) -> str:
    if file.parent == tree:
        return "lies in no L1 .. L4: a candidate has the baseline's folders, like L1/rms_norm.py"
    try:
        registry.task(candidates.task_id(file))
    except NotFoundError as error:
        helper = f"a helper is imported by a task file, relatively: from . import {file.stem}"
        return f"{error}. If it is no task: {helper}; or its name begins with an underscore"
    return "an alias, not a task's own name"


def _check_task(file: Path, parsed: ast.Module, entry: TaskEntry) -> Iterator[Finding]:
    bound = source.top_level_names(parsed)
    mine = {cls: bound[cls] for cls in entry.variants.values() if cls in bound}
    if not mine:
        wanted = " or ".join(dict.fromkeys(entry.variants.values()))
        yield Finding(
            file, 1, "missing-class", f"{entry.id} needs class {wanted}; the file defines none of them"
        )
    baseline = source.top_level_names(source.parse(data_dir("baseline") / f"{entry.id}.py"))
    names = source.imported_names(parsed)
    for cls, statement in mine.items():
        expected = baseline[cls]
        assert isinstance(expected, ast.ClassDef), f"{entry.id}: the baseline's {cls} is no class"
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Finding(
                file, statement.lineno, "missing-class", f"{cls} is a function; it must be an nn.Module class"
            )
        elif isinstance(statement, ast.ClassDef):
            bases = [source.resolved(base, names) or "" for base in statement.bases]
            for rule, line, message in signatures.differences(statement, expected, bases):
                yield Finding(file, line, rule, message)
