"""Who builds on whom: the import graph of the baseline task files, read from their syntax trees."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from fastkernels.layout import data_dir


def direct(task_id: str) -> tuple[str, ...]:
    """Tasks that a baseline task file imports: `from ..L1.rms_norm import RMSNorm` is `L1/rms_norm`."""
    return _direct(data_dir("baseline") / f"{task_id}.py")


@cache
def _direct(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if not isinstance(node, ast.ImportFrom) or node.level not in (1, 2):
            continue
        level = path.parent.name if node.level == 1 else ""
        parts = [part for part in (level, *(node.module or "").split(".")) if part]
        # `from ..L1 import rms_norm` names the file in the alias, `from ..L1.rms_norm import X` in front.
        names = ["/".join(parts)] if len(parts) == 2 else [f"{parts[0]}/{alias.name}" for alias in node.names]
        found |= dict.fromkeys(names)
    return tuple(found)


def reached(task_id: str) -> frozenset[str]:
    """The task and every task below it."""
    return _reached(data_dir("baseline"), task_id)


@cache
def _reached(folder: Path, task_id: str) -> frozenset[str]:
    below = _direct(folder / f"{task_id}.py")
    return frozenset({task_id}.union(*(_reached(folder, task) for task in below)))


def users(task_id: str, all_ids: list[str]) -> list[str]:
    """Those of `all_ids` that import the task themselves."""
    return [other for other in all_ids if task_id in direct(other)]
