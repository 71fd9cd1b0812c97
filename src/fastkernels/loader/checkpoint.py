"""Files of a checkpoint: which files of weights a folder holds, and their tensors one at a time.

A folder holds `model.safetensors`, or shards with `model.safetensors.index.json`; one of diffusers calls them
`diffusion_pytorch_model.safetensors`. Without such a file `pytorch_model.bin` (`diffusion_pytorch_model.bin`)
is read, whole or in shards: tensors alone, code in it is never run. Without that, `point_cloud.ply` (ply.py)
or the one file `*.ingp` (snapshot.py).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastkernels.errors import FileFormatError, UsageError
from fastkernels.loader.ply import Columns
from fastkernels.loader.snapshot import Snapshot
from fastkernels.nn.misfits import MAX_REPORTED
from fastkernels.registry.load import read_json

_SAFE = ("model.safetensors", "diffusion_pytorch_model.safetensors")
_PICKLED = ("pytorch_model.bin", "diffusion_pytorch_model.bin")
_CLOUD = ("point_cloud.ply",)
_AGAIN = "Download it again (in a git clone: git lfs pull)"


def tensor_files(folder: Path) -> dict[Path, list[str] | None]:
    """The files of weights of a folder, each with the tensors that the index expects in it (None: whatever it
    holds)."""
    files = _named(folder, _SAFE) or _alone(folder) or _named(folder, _PICKLED) or _named(folder, _CLOUD)
    files = files or _alone(folder, "*.ingp")
    if not files:
        raise UsageError(f"{folder} holds no {_SAFE[0]} and no {_PICKLED[0]}, whole or with an index")
    return files


def _named(folder: Path, names: tuple[str, ...]) -> dict[Path, list[str] | None]:
    """As `tensor_files`, of files with these names; empty where there are none."""
    for name in names:
        if (folder / f"{name}.index.json").is_file():
            return _indexed(folder / f"{name}.index.json")
    for name in names:
        if (folder / name).is_file():
            return {folder / name: None}
    return {}


def _alone(folder: Path, pattern: str = "*.safetensors") -> dict[Path, list[str] | None]:
    """The one file of any such name; empty where there are none or several."""
    found = list(folder.glob(pattern))
    return {found[0]: None} if len(found) == 1 else {}


def _indexed(index: Path) -> dict[Path, list[str] | None]:
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise FileFormatError(index, "weight_map", "expected tensor names and their files")
    files: dict[Path, list[str]] = {}
    for name, file in placed.items():
        if not isinstance(file, str):
            raise FileFormatError(index, f"tensor {name}", f"{file!r:.60} is no file's name")
        files.setdefault(index.parent / file, []).append(name)
    if absent := sorted(path for path in files if not path.is_file()):
        names = _listed(path.name for path in absent)
        said = f"{len(absent)} files are missing: {names}" if absent[1:] else f"the file {names} is missing"
        raise FileFormatError(index, f"tensor {files[absent[0]][0]}", f"{said}. {_AGAIN}")
    return dict(files)


def read_tensors(paths: Iterable[Path], in_slices: bool = False) -> Iterator[tuple[str, Any]]:
    """Every tensor, one at a time; in_slices: what reads the slices of it that it is asked for. A
    FileFormatError names the file and the tensor."""
    for path in paths:
        with _opened(path) as file:
            for name in list(file.keys()):
                with _naming(path, name):
                    tensor = _Slices(file, path, name) if in_slices else file.get_tensor(name)
                yield name, tensor


@contextmanager
def _naming(path: Path, name: str) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise FileFormatError(path, f"tensor {name}", f"{error}. {_AGAIN}") from error


class _Slices:
    """A tensor of a file that is open: its shape and dtype, and of its values what is asked for."""

    def __init__(self, file: Any, path: Path, name: str) -> None:
        self._path, self._name = path, name
        if isinstance(file, (_Unpickled, Columns, Snapshot)):
            self._whole = file.get_tensor(name)  # mapped
            self.shape, self.dtype = self._whole.shape, self._whole.dtype
        else:
            self._whole = file.get_slice(name)
            self.shape = torch.Size(self._whole.get_shape())
            self.dtype = (self._whole[:0] if self.shape else file.get_tensor(name)).dtype

    def __getitem__(self, places: Any) -> Tensor:
        with _naming(self._path, self._name):
            return self._whole[places]


def misplaced(files: dict[Path, list[str] | None]) -> list[tuple[Path, str]]:
    """The tensors that are not in the file where the index places them. Only headers are read."""
    found = []
    for path, expected in files.items():
        if expected is not None:
            with _opened(path) as file:
                there = set(file.keys())
            found += [(path, name) for name in expected if name not in there]
    return found


def misplacement(found: list[tuple[Path, str]], consequence: str = "") -> FileFormatError:
    """What to say of tensors that `misplaced` found, and what follows from it."""
    (path, name), *others = found
    more = f" (so with {len(others)} more: {_listed(other for _, other in others)})" if others else ""
    said = f"the index places it here, but it is not there{more}. {_AGAIN}"
    return FileFormatError(path, f"tensor {name}", "\n".join(filter(None, [said, consequence])))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """What gives names by keys() and tensors by get_tensor(name)."""
    from safetensors import SafetensorError, safe_open

    if path.suffix in (".bin", ".pt"):
        yield _Unpickled(path)
        return
    if path.suffix == ".ply":
        yield Columns(path)
        return
    if path.suffix == ".ingp":
        yield Snapshot(path)
        return
    try:
        opened = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise FileFormatError(
            path, "header", f"not a readable safetensors file: {error}. {_AGAIN}"
        ) from error
    with opened as file:
        yield file


class _Unpickled:
    """The tensors of a .bin file, memory-mapped where its format allows it."""

    def __init__(self, path: Path) -> None:
        try:
            # A file of the old format is no archive, and is read whole.
            held = torch.load(path, "cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except Exception as error:  # whatever a damaged file makes of the reader
            if asked := re.search(r"GLOBAL ([\w.]+)", str(error)):
                problem = (
                    f"asks for {asked[1]}: tensors alone are read, and no code is run. Take safetensors files"
                )
            else:
                problem = f"no readable file of tensors. {_AGAIN}"
            raise FileFormatError(path, "contents", problem) from error
        if not isinstance(held, dict):
            raise FileFormatError(path, "contents", f"a {type(held).__name__}: expected names and tensors")
        for name, tensor in held.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
                raise FileFormatError(path, f"tensor {name}", "is no dense tensor")
        self.keys, self.get_tensor = held.keys, held.__getitem__


def _listed(names: Iterable[str]) -> str:
    told = list(names)
    more = [f"and {len(told) - MAX_REPORTED} more"] if len(told) > MAX_REPORTED else []
    return ", ".join([*told[:MAX_REPORTED], *more])
