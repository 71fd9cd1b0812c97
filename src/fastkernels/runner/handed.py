"""Requests that a side gets with the word to begin. Their arrays lie in a memory file without a name: nobody
reads them before, and however large they are, handing them over takes no time.

    with handed(requests) as arguments:                the judge; requests are arrays and numbers by name
        side.call("answer", batch=8, **arguments)
    requests = taken(requests, descriptors)            the side: its own copies, made where it writes
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastkernels.runner.shared import ALIGNMENT, memory_file


class Form(NamedTuple):
    """Where an array lies in the file, and what it is."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


@contextlib.contextmanager
def handed(requests: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The arguments of a call that hands the requests over."""
    arrays: list[tuple[Form, np.ndarray]] = []
    size = 0

    def form(value: Any) -> Any:
        nonlocal size
        if not isinstance(value, np.ndarray):
            return value
        arrays.append((Form(size, value.shape, value.dtype.str), value))
        size += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        return arrays[-1][0]

    forms = [{name: form(value) for name, value in request.items()} for request in requests]
    descriptor = memory_file(max(size, 1))
    try:
        with open(descriptor, "wb", closefd=False) as file:
            for (offset, *_), array in arrays:
                file.seek(offset)
                file.write(np.ascontiguousarray(array).data)
        yield {"requests": forms, "descriptors": [descriptor]}
    finally:
        os.close(descriptor)


def taken(requests: Sequence[Mapping[str, Any]], descriptors: Sequence[int]) -> list[dict[str, Any]]:
    """The requests that were handed over; the descriptor is closed."""
    (descriptor,) = descriptors
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    os.close(descriptor)
    return [
        {name: _view(memory, *v) if isinstance(v, Form) else v for name, v in request.items()}
        for request in requests
    ]


def _view(memory: mmap.mmap, offset: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(memory, dtype, count, offset).reshape(shape)
