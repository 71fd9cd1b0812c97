"""A snapshot of a trained radiance field (`.ingp`) as two tensors: MessagePack, compressed by zlib or gzip.

    params_binary           all parameters, float16 or float32
    density_grid_binary     the optical thickness of each cell, float16

Nothing in it is run. Of MessagePack all but extension types is read.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.errors import FileFormatError

_EITHER = 47  # zlib or gzip
_MOST_BYTES = 1 << 31
_NAMES = ("params_binary", "density_grid_binary")
_TYPES = {"__half": "<f2", "float": "<f4"}
_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
            0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}  # fmt: skip
_LENGTHS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xC4: ">B", 0xC5: ">H", 0xC6: ">I",
            0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class Snapshot:
    """What gives names by keys() and tensors by get_tensor(name). A FileFormatError says what is no such
    file."""

    def __init__(self, path: Path) -> None:
        try:
            unpack = zlib.decompressobj(_EITHER)
            content = unpack.decompress(path.read_bytes(), _MOST_BYTES)
            snapshot = _Reader(content).value()["snapshot"]
            types = {"params_binary": _TYPES[snapshot["params_type"]], "density_grid_binary": "<f2"}
            self._vectors = {name: np.frombuffer(snapshot[name], types[name]) for name in _NAMES}
        except (
            zlib.error,
            struct.error,
            IndexError,
            KeyError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            problem = f"no snapshot of a radiance field ({type(error).__name__}: {error})"
            raise FileFormatError(path, "contents", problem) from error
        self.keys = self._vectors.keys

    def get_tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self._vectors[name].copy())


class _Reader:
    """Values of MessagePack, one behind the other."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def value(self) -> Any:
        (kind,) = self._bytes(1)
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind < 0x80 or kind >= 0xE0:
            return kind if kind < 0x80 else kind - 0x100
        if kind < 0xC0:  # a length in the same byte
            is_text = kind >= 0xA0
            return self._many(
                0xD9 if is_text else 0xDC if kind >= 0x90 else 0xDE, kind & (31 if is_text else 15)
            )
        return self._many(kind, self._number(_LENGTHS[kind]))

    def _many(self, kind: int, length: int) -> Any:
        if kind >= 0xDE:
            return {self.value(): self.value() for _ in range(length)}
        if kind >= 0xDC:
            return [self.value() for _ in range(length)]
        content = self._bytes(length)
        return content.decode() if kind >= 0xD9 else content

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, length: int) -> bytes:
        found = self._content[self._at : self._at + length]
        if len(found) != length:
            raise ValueError(f"it ends {length - len(found)} bytes early")
        self._at += length
        return found
