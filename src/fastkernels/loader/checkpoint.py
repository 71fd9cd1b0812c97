"""Files of a checkpoint: which safetensors files a folder holds, and their tensors one at a time.

A folder holds `model.safetensors`, or shards with `model.safetensors.index.json`; one of diffusers calls them
`diffusion_pytorch_model.safetensors`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from fastkernels.errors import FileFormatError, UsageError

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DIFFUSION_INDEX = "diffusion_pytorch_model.safetensors.index.json"


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
        files: dict[Path, list[str] | None] = {}
        for name, file in placed.items():
            files.setdefault(folder / str(file), []).append(name)  # pyright: ignore[reportOptionalMemberAccess]
        for path, names in files.items():
            if not path.is_file():
                raise FileFormatError(
                    index, f"tensor {names[0] if names else ''}", f"the file {path.name} is missing"
                )
        return files
    if single.is_file():
        return {single: None}
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: None}
    other = " (PyTorch .bin files are not read: convert them)" if list(folder.glob("*.bin")) else ""
    raise UsageError(f"{folder} holds no {_SINGLE} and no {_INDEX}{other}")


def read_tensors(files: dict[Path, list[str] | None]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor, memory-mapped, one at a time. A FileFormatError names the file and the tensor."""
    from safetensors import SafetensorError, safe_open

    for path, expected in files.items():
        try:
            opened = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise FileFormatError(path, "header", f"not a readable safetensors file: {error}") from error
        with opened as file:
            names = list(file.keys())
            if absent := set(expected or ()) - set(names):
                raise FileFormatError(
                    path, f"tensor {min(absent)}", "the index places it here, but it is not there"
                )
            for name in names:
                try:
                    tensor = file.get_tensor(name)
                except (SafetensorError, RuntimeError, ValueError) as error:
                    raise FileFormatError(path, f"tensor {name}", str(error)) from error
                yield name, tensor


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; a FileFormatError says where it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        line = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise FileFormatError(path, line, str(error)) from None
    if not isinstance(content, dict):
        raise FileFormatError(path, "", "expected a JSON object")
    return content
