"""Task overlays: import the task tree with candidates laid on top of it, without patching anything.

`Overlay((candidate, baseline))` is a package that exists only in memory. Its module `L1.rms_norm` is the
first file found in the layers; a name that this file leaves out is taken from the file below it. Tasks import
each other relatively (`from ..L1.rms_norm import RMSNorm`), so every module above is read again with the
candidate in place, and several overlays live side by side in one process.

A layer is a folder with `L1` .. `L4`. Beside its task files it may carry helper modules, packages and data;
those are found by the same rule, so a helper is best named after its task (`rms_norm_kernel.py`). Only
relative imports reach them (`from . import rms_norm_kernel`): a layer is not on Python's path. Python's
bytecode cache is neither read nor written: it cannot tell two edits of one second apart, and a candidate
could plant one.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from fastkernels.layout import data_dir, file_of
from fastkernels.loader.source import relative_only

_PREFIX = "fastkernels_overlay_"
_BELOW = "__below"  # `L1.rms_norm__below` is `L1.rms_norm` of the next layer that has one
_overlays: dict[str, Overlay] = {}


@dataclass(frozen=True)
class Overlay:
    """A stack of task trees, highest first. Equal stacks have equal package names in every process."""

    layers: tuple[Path, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(Path(layer).resolve() for layer in self.layers))

    @classmethod
    def over_baseline(cls, candidates: Sequence[Path] = ()) -> Overlay:
        """The baseline with `candidates` (highest first) over it."""
        return cls((*candidates, data_dir("baseline")))

    @property
    def package(self) -> str:
        digest = hashlib.sha256("\0".join(map(str, self.layers)).encode()).hexdigest()
        return f"{_PREFIX}{digest[:12]}"

    def load(self, name: str) -> ModuleType:
        """Import `L1.rms_norm` (or `L1/rms_norm`); a file's errors surface with its path and line."""
        _overlays.setdefault(self.package, self)
        return importlib.import_module(f"{self.package}.{_dotted(name)}")

    def files(self, name: str) -> list[Path]:
        """Every file that defines module `name`, highest layer first."""
        return [file for layer in self.layers if (file := _source(layer, _dotted(name)))]

    def origin(self, of: str | type) -> Path | None:
        """The layer that a task (its topmost file) or a class (the file that defines it) comes from."""
        if isinstance(of, str):
            return next((layer for layer in self.layers if _source(layer, _dotted(of))), None)
        return self._layer_of(file_of(of))

    def task(self, cls: type) -> str | None:
        """`L1/rms_norm` for a class that a file of this overlay defines."""
        file = file_of(cls)
        layer = self._layer_of(file)
        return file.relative_to(layer).with_suffix("").as_posix() if file and layer else None

    def blame(self, error: BaseException) -> tuple[Path, int] | None:
        """File and line of the innermost place, in a candidate if any, that `error` came from."""
        frames = [
            (Path(frame.filename), frame.lineno or 1) for frame in traceback.extract_tb(error.__traceback__)
        ]
        if isinstance(error, SyntaxError) and error.filename:
            frames.append((Path(error.filename), error.lineno or 1))
        ours = [place for place in reversed(frames) if self._layer_of(place[0])]
        return next(
            (place for place in ours if self._layer_of(place[0]) != self.layers[-1]),
            ours[0] if ours else None,
        )

    def is_candidates(self, file: Path) -> bool:
        """Whether a file lies in a candidate's layer."""
        return self._layer_of(file) in self.layers[:-1]

    def advice(self, error: BaseException) -> str | None:
        """What to write in place of an absolute import that failed, where it meant a candidate's own file."""
        if not isinstance(error, ModuleNotFoundError) or not error.name:
            return None
        root = error.name.partition(".")[0]
        return next(filter(None, (relative_only(root, layer) for layer in self.layers[:-1])), None)

    def _layer_of(self, file: Path | None) -> Path | None:
        return next((layer for layer in self.layers if file and file.is_relative_to(layer)), None)


def _dotted(name: str) -> str:
    return name.replace("/", ".")


def _source(layer: Path, dotted: str) -> Path | None:
    """The file of module or package `dotted` in a layer."""
    path = layer.joinpath(*dotted.split("."))
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs one file; names that it lacks fall through to the file below."""

    def __init__(self, fullname: str, path: str, has_below: bool) -> None:
        super().__init__(fullname, path)
        self.has_below = has_below

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        # Until the file has run, a missing name is a circular import; it must not become the baseline's.
        super().exec_module(module)
        if self.has_below and "__getattr__" not in vars(module):
            module.__getattr__ = _fall_through(module.__name__)  # type: ignore[method-assign]


def _fall_through(name: str):
    def __getattr__(attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(f"module '{name}' has no attribute '{attribute}'")
        return getattr(importlib.import_module(f"{name}{_BELOW}"), attribute)

    return __getattr__


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of overlays; extension modules in a layer are left to Python's own finder."""

    def find_spec(self, fullname: str, path: object = None, target: object = None):
        root, _, rest = fullname.partition(".")
        overlay = _overlays.get(root)
        if overlay is None:
            return None
        name, depth = rest, 0
        while name.endswith(_BELOW):
            name, depth = name.removesuffix(_BELOW), depth + 1
        if files := overlay.files(name)[depth:] if name else []:
            loader = _Loader(fullname, str(files[0]), has_below=len(files) > 1)
            inside = [str(files[0].parent)] if files[0].name == "__init__.py" else None
            return importlib.util.spec_from_file_location(
                fullname, files[0], loader=loader, submodule_search_locations=inside
            )
        folders = [str(f) for layer in overlay.layers if (f := layer.joinpath(*name.split("."))).is_dir()]
        if not folders:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = folders
        return spec


sys.meta_path.insert(0, _Finder())
