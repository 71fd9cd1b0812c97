"""Arrays as JSON values: lists of millions of numbers would take seconds to write and to read.

packed(array)    -> {"shape": [...], "float32": base64 of its bytes}
unpacked(value)  -> the array; ValueError for what is none
digest(array)    -> what only somebody who has the array can say
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import numpy as np

DIGEST_BYTES = 16


def packed(array: np.ndarray) -> dict[str, Any]:
    values = np.ascontiguousarray(array, dtype="<f4")
    return {"shape": list(values.shape), "float32": base64.b64encode(values.tobytes()).decode("ascii")}


def unpacked(value: Any) -> np.ndarray:
    """Nothing is believed: a worker with a candidate in it wrote this."""
    try:
        data = base64.b64decode(value["float32"], validate=True)
        return np.frombuffer(data, dtype="<f4").reshape([int(side) for side in value["shape"]])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"no packed array: {error}") from error


def digest(array: np.ndarray) -> str:
    """Of the values, as `packed` sends them."""
    values = np.ascontiguousarray(array, dtype="<f4")
    return hashlib.blake2b(values.tobytes(), digest_size=DIGEST_BYTES).hexdigest()
