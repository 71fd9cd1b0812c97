"""A PLY file of trained Gaussians as columns [N]: binary, little-endian, one element `vertex` of floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastkernels.errors import FileFormatError

_END = b"end_header\n"
_MOST_HEADER = 1 << 16  # bytes
_FLOATS = ("float", "float32")


class Columns:
    """What gives names by keys() and tensors by get_tensor(name). A FileFormatError says what is no such
    file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            head, end, _ = file.read(_MOST_HEADER).partition(_END)
        lines = [line.split() for line in head.decode("ascii", errors="replace").splitlines()]
        lines = [line for line in lines if line and line[0] not in ("comment", "obj_info")]
        if not end or lines[:2] != [["ply"], ["format", "binary_little_endian", "1.0"]]:
            raise FileFormatError(path, "header", "expected that of a binary, little-endian PLY file")
        elements = [line for line in lines if line[0] == "element"]
        if len(elements) != 1 or elements[0][1:2] != ["vertex"] or not elements[0][-1].isdecimal():
            raise FileFormatError(path, "header", "expected one element, `vertex`, and how many there are")
        properties = [line[1:] for line in lines[lines.index(elements[0]) + 1 :]]
        for one in properties:
            if len(one) != 2 or one[0] not in _FLOATS:
                raise FileFormatError(path, f"property {' '.join(one)}", "expected `float` and a name")
        names, count = [name for _, name in properties], int(elements[0][-1])
        start, size = len(head) + len(end), 4 * len(names)
        if path.stat().st_size != start + count * size or len(set(names)) != len(names):
            problem = f"expected {count} vertices of {size} bytes behind the header, each property once"
            raise FileFormatError(path, "contents", problem)
        rows_NP = np.memmap(path, "<f4", "r", start, (count, len(names)))
        self._columns = {name: rows_NP[:, place] for place, name in enumerate(names)}
        self.keys = self._columns.keys

    def get_tensor(self, name: str) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._columns[name], np.float32))
