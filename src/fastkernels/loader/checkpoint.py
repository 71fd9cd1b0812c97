"""Files of a checkpoint: which safetensors files a folder holds, and their tensors one at a time.

A folder holds `model.safetensors`, or shards with `model.safetensors.index.json`; one of diffusers calls them
`diffusion_pytorch_model.safetensors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from fastkernels.errors import FileFormatError, UsageError
from fastkernels.nn.misfits import MAX_REPORTED
from fastkernels.registry.load import read_json

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DIFFUSION_INDEX = "diffusion_pytorch_model.safetensors.index.json"
_AGAIN = "Download it again (in a git clone: git lfs pull)"


def tensor_files(folder: Path) -> dict[Path, list[str] | None]:
    """The safetensors files of a folder, each with the tensors that the index expects in it (None: whatever
    it holds)."""
    index, single = folder / _INDEX, folder / _SINGLE
    if not index.is_file():
        index = folder / _DIFFUSION_INDEX
    if index.is_file():
        placed = read_json(index).get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise FileFormatError(index, "weight_map", "expected tensor names and their files")
        files: dict[Path, list[str]] = {}
        for name, file in placed.items():
            if not isinstance(file, str):
                raise FileFormatError(index, f"tensor {name}", f"{file!r:.60} is no file's name")
            files.setdefault(folder / file, []).append(name)
        if absent := sorted(path for path in files if not path.is_file()):
            names = _listed(path.name for path in absent)
            said = (
                f"{len(absent)} files are missing: {names}" if absent[1:] else f"the file {names} is missing"
            )
            raise FileFormatError(index, f"tensor {files[absent[0]][0]}", f"{said}. {_AGAIN}")
        return dict(files)
    if single.is_file():
        return {single: None}
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: None}
    other = " (PyTorch .bin files are not read: convert them)" if list(folder.glob("*.bin")) else ""
    raise UsageError(f"{folder} holds no {_SINGLE} and no {_INDEX}{other}")


def read_tensors(paths: Iterable[Path]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor, memory-mapped, one at a time. A FileFormatError names the file and the tensor."""
    from safetensors import SafetensorError

    for path in paths:
        with _opened(path) as file:
            for name in list(file.keys()):
                try:
                    tensor = file.get_tensor(name)
                except (SafetensorError, RuntimeError, ValueError) as error:
                    raise FileFormatError(path, f"tensor {name}", f"{error}. {_AGAIN}") from error
                yield name, tensor


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
    from safetensors import SafetensorError, safe_open

    try:
        opened = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise FileFormatError(
            path, "header", f"not a readable safetensors file: {error}. {_AGAIN}"
        ) from error
    with opened as file:
        yield file


def _listed(names: Iterable[str]) -> str:
    told = list(names)
    more = [f"and {len(told) - MAX_REPORTED} more"] if len(told) > MAX_REPORTED else []
    return ", ".join([*told[:MAX_REPORTED], *more])
