"""Arrays between the judge and a side of a model: requests as a memory file, answers as JSON values.

    with handed(requests) as arguments:                the judge; requests are arrays and numbers by name
        side.call("answer", batch=8, **arguments)
    requests = taken(requests, descriptors)            the side: its own copies, made where it writes

    packed(array)      -> {"shape": [...], "dtype": "<f4" or "<i8", "data": base64 of its bytes}
    unpacked(value)    -> the array; ValueError for what is none
    digest(outputs)    -> what only somebody who has the outputs, arrays by name, can say

A side gets requests with the word to begin. They lie in a memory file without a name: nobody reads them
before, and however large they are, handing them over takes no time. Lists of millions of numbers in an answer
would take seconds to write and to read.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastkernels.runner.transfer.shared_memory import ALIGNMENT, memory_file


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


DIGEST_BYTES = 16
_DTYPES = ("<f4", "<i8")


def packed(array: np.ndarray) -> dict[str, Any]:
    values = _plain(array)
    data = base64.b64encode(values.tobytes()).decode("ascii")
    return {"shape": list(values.shape), "dtype": values.dtype.str, "data": data}


def unpacked(value: Any) -> np.ndarray:
    """Nothing is believed: a worker with a candidate in it wrote this."""
    try:
        if value["dtype"] not in _DTYPES:
            raise ValueError(f"dtype {value['dtype']!r:.20}")
        data = base64.b64decode(value["data"], validate=True)
        return np.frombuffer(data, value["dtype"]).reshape([int(side) for side in value["shape"]])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"no packed array: {error}") from error


def digest(outputs: Mapping[str, np.ndarray]) -> str:
    """Of the values, as `packed` sends them."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(outputs):
        found.update(name.encode() + b"\0" + _plain(outputs[name]).tobytes())
    return found.hexdigest()


def _plain(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, _DTYPES[array.dtype.kind in "biu"])
