"""Which candidates lie where. Reads file names and syntax trees; imports neither candidates nor torch.

A candidate is a tree with the baseline's folders (`L1/rms_norm.py`). A path names one tree, a folder of trees
(each a candidate of its own), or several trees to be stacked, highest first: `top:below` (os.pathsep).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.loader import files as lying
from fastkernels.loader import shadow, source
from fastkernels.registry.schema import TaskEntry

_WHAT_IT_IS = (
    "A candidate is a folder with task files at the baseline's places, like NAME/L1/rms_norm.py; "
    "`fk stubs --target rms_norm` writes one"
)

_MAX_ENTRIES = 10_000  # a copy of a library's headers has some thousand

# Half of a surrogate pair (a byte that is no UTF-8) has no place in JSON, a control character none in XML.
_UNSPEAKABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class CandidateSet:
    """Candidates that are judged together: one tree or a stack. `files`: task id -> its topmost file."""

    name: str
    layers: tuple[Path, ...]
    files: Mapping[str, Path]
    unknown: tuple[Path, ...] = ()  # task-like files that no registered task matches: reported, never used

    def shadowed(self) -> tuple[str, ...]:
        """What is no longer reached from above (see shadow.py), one sentence each."""
        return tuple(shadow.shadowed(self.layers, self.files))

    def imported_by(self, task: str) -> list[str]:
        """Those of its tasks that a task file imports, directly or not, with the candidates in place."""
        return shadow.imported(self.layers, self.files, task)


def discover(paths: Iterable[str | Path]) -> list[CandidateSet]:
    """The candidates under `paths`; UsageError for a path that holds none."""
    found: list[tuple[Path, ...]] = []
    for path in paths:
        # Not Path's own: they raise for a home of nobody and for links in a circle.
        parts = [
            Path(os.path.realpath(os.path.expanduser(part))) for part in str(path).split(os.pathsep) if part
        ]
        if not parts:
            raise UsageError(f"'{path}' names no folder. {_WHAT_IT_IS}")
        if len(parts) == 1 and not is_tree(_existing(parts[0])):
            found += [(tree,) for tree in _trees_inside(parts[0])]
        else:
            for part in parts:
                if not is_tree(_existing(part)):
                    raise UsageError(f"{part}: no candidate here to stack. {_WHAT_IT_IS}")
            found.append(tuple(parts))
    found = list(dict.fromkeys(found))
    for layer in (layer for layers in found for layer in layers):
        if _UNSPEAKABLE.search(str(layer)):
            raise UsageError(
                f"{str(layer)!a}: reports and terminals name candidates. Rename it in plain UTF-8"
            )
    return [_candidate_set(name, layers) for name, layers in zip(_names(found), found)]


def is_tree(folder: Path) -> bool:
    """Whether the folder has L1 .. L4 with Python files."""
    return any(next((folder / level).glob("*.py"), None) for level in source.LEVELS)


def replaced_variants(file: Path, entry: TaskEntry) -> dict[str, str]:
    """Variant -> class name, of the classes that the file binds; all for a file that does not parse."""
    try:
        names = source.top_level_names(source.parse(file))
    except SyntaxError:
        return dict(entry.variants)
    return {variant: cls for variant, cls in entry.variants.items() if cls in names}


def python_files(tree: Path) -> list[Path]:
    """Every Python file of a candidate tree: tasks first, by level. Linked folders belong to it, as Python
    imports from them; so does what only has the name of one, a folder or a link that leads nowhere.
    UsageError where that is no candidate's tree any more."""
    return [file for level in source.LEVELS for file in sorted(_python_files_below(tree / level))]


def _python_files_below(folder: Path) -> list[Path]:
    found = list(islice(lying.below(folder, linked=True), _MAX_ENTRIES + 1))
    if len(found) > _MAX_ENTRIES:
        problem = f"more than {_MAX_ENTRIES} files, those of linked folders with it"
        raise UsageError(f"{folder}: {problem}. Keep here what the candidate imports")
    return [file for file in found if file.name.endswith(".py") and not _locks(file)]


def _locks(file: Path) -> bool:
    """Emacs links `.#rms_norm.py` to nowhere while it holds changes of rms_norm.py."""
    return file.name.startswith(".#") and not os.path.exists(file)


def unknown_files(tree: Path) -> list[Path]:
    """Files at a task's place that no task is registered for and that no other file of the tree imports."""
    files = python_files(tree)
    helpers: set[str] = set()
    for file in files:
        try:
            helpers |= source.module_imports(source.parse(file), module_name(tree, file))
        except SyntaxError:
            continue  # judged by itself: `fk check`, IMPORT_ERROR
    known = {entry.id for entry in registry.tasks()}
    return [
        file
        for file in files
        if file.parent.parent == tree
        and not file.name.startswith("_")
        and task_id(file) not in known
        and module_name(tree, file) not in helpers
    ]


def task_id(file: Path) -> str:
    """`L1/rms_norm` for the file at a task's place."""
    return f"{file.parent.name}/{file.stem}"


def module_name(tree: Path, file: Path) -> str:
    """`L1.rms_norm`"""
    return ".".join(file.relative_to(tree).with_suffix("").parts)


def _existing(path: Path) -> Path:
    try:
        path.stat()
    except PermissionError:
        raise  # it may well be there: `fk` says whose permission is missing
    except (OSError, ValueError):
        raise UsageError(f"{path}: no such folder. {_WHAT_IT_IS}") from None
    if not path.is_dir():
        raise UsageError(f"{path}: a file; give the folder that holds its L1 .. L4. {_WHAT_IT_IS}")
    return path


def _trees_inside(folder: Path) -> list[Path]:
    trees = [child for child in sorted(folder.iterdir()) if child.is_dir() and is_tree(child)]
    if not trees:
        parent = (
            f" Did you mean {folder.parent}?"
            if folder.name in source.LEVELS and is_tree(folder.parent)
            else ""
        )
        raise UsageError(f"{folder}: no candidate here.{parent} {_WHAT_IT_IS}")
    return trees


def _candidate_set(name: str, layers: tuple[Path, ...]) -> CandidateSet:
    files: dict[str, Path] = {}
    for entry in registry.tasks():
        places = (layer / f"{entry.id}.py" for layer in layers)
        # A folder or a broken link there is a candidate that cannot be read, and not none.
        if file := next((place for place in places if os.path.lexists(place)), None):
            files[entry.id] = file
    unknown = tuple(file for layer in layers for file in unknown_files(layer))
    return CandidateSet(name, layers, files, unknown)


def _names(sets: list[tuple[Path, ...]]) -> list[str]:
    """`faster`, `top+below`; with more of the path where two would be called the same."""
    depth = 1
    while True:
        names = ["+".join("/".join(layer.parts[-depth:]) for layer in layers) for layers in sets]
        if len(set(names)) == len(names):
            return names
        depth += 1
