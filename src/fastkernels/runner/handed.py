"""Arrays that a side gets with the word to begin. They lie in a memory file without a name: nobody reads them
before, and however large they are, handing them over takes no time.

    with handed(images) as arguments:                  the judge
        side.call("answer", batch=8, **arguments)
    images = taken(forms, descriptors)                 the side: its own copies, made where it writes
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastkernels.runner.shared import ALIGNMENT, memory_file


class Form(NamedTuple):
    """Where an array lies in the file, and what it is."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


@contextlib.contextmanager
def handed(arrays: Sequence[np.ndarray]) -> Iterator[dict[str, Any]]:
    """The arguments of a call that hands the arrays over."""
    forms, size = [], 0
    for array in arrays:
        forms.append(Form(size, array.shape, array.dtype.str))
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    descriptor = memory_file(max(size, 1))
    try:
        with open(descriptor, "wb", closefd=False) as file:
            for form, array in zip(forms, arrays):
                file.seek(form.offset)
                file.write(np.ascontiguousarray(array).data)
        yield {"forms": forms, "descriptors": [descriptor]}
    finally:
        os.close(descriptor)


def taken(forms: Sequence[Form], descriptors: Sequence[int]) -> list[np.ndarray]:
    """The arrays that were handed over; the descriptor is closed."""
    (descriptor,) = descriptors
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    os.close(descriptor)
    return [_view(memory, *form) for form in forms]


def _view(memory: mmap.mmap, offset: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(memory, dtype, count, offset).reshape(shape)
