"""Arrays as JSON values: lists of millions of numbers would take seconds to write and to read.

packed(array)      -> {"shape": [...], "dtype": "<f4" or "<i8", "data": base64 of its bytes}
unpacked(value)    -> the array; ValueError for what is none
digest(outputs)    -> what only somebody who has the outputs, arrays by name, can say
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

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
