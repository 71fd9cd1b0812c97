"""Which candidate files a higher candidate cuts off, from the import graph of the task trees.

In the baseline L2/gated_mlp imports L1/glu. A candidate for L2/gated_mlp that does the activation itself no
longer does: an L1/glu candidate then does not reach models through gated_mlp, and a reader of their speed-up
must know that.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastkernels.layout import data_dir
from fastkernels.loader import source


def shadowed(layers: Sequence[Path], files: Mapping[str, Path]) -> list[str]:
    """A sentence for each lower candidate and the higher one that cut it off; `files`: task id -> file."""
    baseline = data_dir("baseline")
    with_candidates = _Graph([*layers, baseline])
    without = _Graph([baseline])
    modules = {task.replace("/", "."): task for task in files}
    lost = {
        upper: (without.reach(upper) - with_candidates.reach(upper)) & modules.keys()
        for upper, task in modules.items()
        if with_candidates.readable(upper)
    }
    sentences = []
    for upper, lowers in lost.items():
        beneath = with_candidates.reach(upper) & lost.keys()
        for lower in sorted(lowers):
            if any(lower in lost[other] for other in beneath - {upper}):
                continue  # a candidate further down cut it off, and is named for it
            sentences.append(f"{modules[lower]} is shadowed by {modules[upper]}, which no longer imports it")
    return sentences


def imported(layers: Sequence[Path], files: Mapping[str, Path], task: str) -> list[str]:
    """Those of the tasks in `files` that are `task` or that it imports, directly or not."""
    graph, module = _Graph([*layers, data_dir("baseline")]), task.replace("/", ".")
    reached = {module, *graph.reach(module)}
    return [each for each in files if each.replace("/", ".") in reached]


class _Graph:
    """Imports between the modules of an overlay; a module of fastkernels.baseline is outside of it."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self.layers = layers

    def reach(self, module: str) -> set[str]:
        """Every module of this overlay that `module` imports, directly or not."""
        reached: set[str] = set()
        waiting = [module]
        while waiting:
            new = self.imports(waiting.pop()) - reached
            reached |= new
            waiting += new
        return reached

    def imports(self, module: str) -> set[str]:
        """Modules that the files of `module` import; a lower file counts if those above leave classes out."""
        found: set[str] = set()
        provided: set[str] = set()
        for file in self.files(module):
            try:
                tree = source.parse(file)
            except SyntaxError:
                break
            names = source.top_level_names(tree)
            classes = {name for name, statement in names.items() if isinstance(statement, ast.ClassDef)}
            if provided and classes <= provided:
                break
            provided |= names.keys()
            found |= source.module_imports(tree, module)
        return {name for name in found if self.files(name)}

    def files(self, module: str) -> list[Path]:
        relative = Path(*module.split("."))
        places = (
            layer / part
            for layer in self.layers
            for part in (relative.with_name(f"{relative.name}.py"), relative / "__init__.py")
        )
        # Not Path's own: it raises for a name that is too long, and a candidate may import any.
        return [place for place in places if os.path.isfile(place)]

    def readable(self, module: str) -> bool:
        try:
            source.parse(self.files(module)[0])
        except SyntaxError:
            return False
        return True
