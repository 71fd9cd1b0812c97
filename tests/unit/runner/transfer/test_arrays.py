"""Arrays that cross with the word to begin, through a memory file."""

import os
from typing import Any

import numpy as np
import pytest

from fastkernels.runner.transfer.arrays import handed, taken


def crossed(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with handed(requests) as arguments:
        copies = [os.dup(descriptor) for descriptor in arguments["descriptors"]]
        return taken(arguments["requests"], copies)


def test_arrays_come_as_they_were() -> None:
    rng = np.random.default_rng(1)
    arrays = [
        rng.integers(0, 256, (5, 7, 3), dtype=np.uint8),
        rng.normal(size=11).astype(np.float32),
        np.empty((0, 3), dtype=np.uint8),
        rng.normal(size=(6, 4)).T,
    ]
    requests = [{"x": one, "y": other, "steps": 3} for one, other in zip(arrays[:2], arrays[2:])]
    for given, found in zip(requests, crossed(requests), strict=True):
        assert found.keys() == given.keys()
        assert found["steps"] == 3
        for name in ("x", "y"):
            assert found[name].dtype == given[name].dtype
            np.testing.assert_array_equal(found[name], given[name])


def test_none_at_all() -> None:
    assert crossed([]) == []


def test_what_a_side_writes_is_its_own() -> None:
    array = np.arange(8)
    with handed([{"x": array}]) as arguments:
        first, second = (
            taken(arguments["requests"], [os.dup(arguments["descriptors"][0])])[0]["x"] for _ in range(2)
        )
    first[0] = 99
    assert second[0] == array[0] == 0


def test_the_file_is_closed_behind_the_call() -> None:
    with handed([{"x": np.arange(3)}]) as arguments:
        (descriptor,) = arguments["descriptors"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
