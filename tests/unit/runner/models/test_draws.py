"""Draws by name: shapes, ranges, parameters from a shape or the configuration; what is missing is named."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fastkernels.errors import NotFoundError, UsageError
from fastkernels.registry.schema import Input
from fastkernels.runner.models.draws import DRAWS, Requests

CONFIG = {"vocab_size": 7, "text": {"hidden": 5}, "tables": [3, 9]}


def drawn(
    inputs: dict[str, Any], shape: dict[str, Any] | None = None, count: int = 1
) -> list[dict[str, Any]]:
    given = {k: Input.model_validate(v) if isinstance(v, dict) else v for k, v in inputs.items()}
    return Requests(given, CONFIG, random.Random(1)).of([shape or {}], count)


@pytest.mark.parametrize(
    ("given", "shape", "form", "low", "high"),
    [
        ({"draw": "image"}, {"height": 8, "width": 12}, ("uint8", (8, 12, 3)), 0, 255),
        (
            {"draw": "video"},
            {"frames": 5, "height": 8, "width": 12},
            ("uint8", (5, 8, 12, 3)),
            0,
            255,
        ),
        ({"draw": "subset", "count": "targets", "high": 900}, {"targets": 40}, ("int64", (40,)), 0, 899),
        ({"draw": "audio"}, {"seconds": 0.5}, ("float32", (8000,)), -1, 1),
        ({"draw": "audio", "sampling_rate": 24000}, {"seconds": 0.5}, ("float32", (12000,)), -1, 1),
        (
            {"draw": "normal", "shape": ["rows", "config.text.hidden"]},
            {"rows": 3},
            ("float32", (3, 5)),
            -9,
            9,
        ),
        ({"draw": "uniform", "shape": [400], "low": 2, "high": 3}, {}, ("float32", (400,)), 2, 3),
        ({"draw": "integers", "shape": [400], "high": "config.vocab_size"}, {}, ("int64", (400,)), 0, 6),
        ({"draw": "lengths", "most": "config.tables"}, {"rows": 40, "ragged": 1}, ("int64", (2, 40)), 0, 9),
    ],
)
def test_what_is_drawn(given: Any, shape: Any, form: tuple[str, Any], low: float, high: float):
    one, other = drawn({"x": given}, shape, count=2)
    assert (str(one["x"].dtype), one["x"].shape) == form
    assert low <= one["x"].min() < one["x"].max() <= high
    assert not np.array_equal(one["x"], other["x"])


def test_cameras_on_an_orbit_see_its_middle():
    inputs = {"view": {"draw": "orbit", "distance": 3.5}, "K": {"draw": "intrinsics"}}
    found = drawn(inputs, {"height": 33, "width": 40}, count=9)
    for request in found:
        view, intrinsics = request["view"].astype(float), request["K"]
        assert (request["view"].dtype, intrinsics.dtype) == ("float32", "float32")
        assert np.allclose(view[:3, :3] @ view[:3, :3].T, np.eye(3), atol=1e-6)
        assert np.isclose(np.linalg.det(view[:3, :3]), 1)
        x, y, z = view[:3, 3]  # of the middle, for the camera
        assert abs(x) < 1e-6 > abs(y)
        assert 0.9 * 3.5 <= z <= 1.1 * 3.5 * (1 + 0.35**2) ** 0.5
        assert view[1, 2] < 0, "up is up"
        assert intrinsics.tolist() == [[28, 0, 20], [0, 28, 16.5], [0, 0, 1]]
    assert len({request["view"].tobytes() for request in found}) == 9


def test_a_subset_is_rising_and_a_video_moves():
    shape = {"frames": 3, "height": 16, "width": 16}
    inputs = {"some": {"draw": "subset", "count": 9, "high": 10}, "video": {"draw": "video"}}
    for request in drawn(inputs, shape, count=20):
        assert (np.diff(request["some"]) > 0).all()
        first, second, third = request["video"].astype(int)
        assert (first != second).any()
        assert (second != third).any()
        assert np.array_equal(np.sort(first, axis=None), np.sort(second, axis=None))


BAGS = {
    "lengths": {"draw": "lengths", "most": [4, 0, 2]},
    "values": {"draw": "entries", "high": [3, 5, 90], "lengths": "lengths"},
}


def test_bags_have_as_many_entries_as_their_lengths_each_below_its_tables_rows():
    for request in drawn(BAGS, {"rows": 6, "ragged": 1}, count=50):
        lengths, values = request["lengths"], request["values"]
        assert (lengths <= np.array([[4], [0], [2]])).all()
        first, _, third = np.split(values, np.cumsum(lengths.sum(1))[:-1])
        assert (str(values.dtype), len(values)) == ("int64", lengths.sum())
        assert first.max() < 3
        assert 5 <= third.max() < 90
    lengths = [request["lengths"] for request in drawn(BAGS, {"rows": 6, "ragged": 1}, count=50)]
    assert {0, 1, 2, 3, 4} == set(np.unique(lengths))
    (fixed,) = drawn(BAGS, {"rows": 2})
    assert fixed["lengths"].tolist() == [[4, 4], [0, 0], [2, 2]]


def test_an_input_is_drawn_by_those_before_it_alone():
    with pytest.raises(UsageError, match="input values: a shape of rows has no lengths"):
        drawn(dict(reversed(BAGS.items())), {"rows": 6})


def test_numbers_ranges_and_seeds():
    inputs = {"steps": "steps", "guidance": 3.5, "seed": {"draw": "seed"}, "x": {"draw": "audio"}}
    found = drawn(inputs, {"steps": (2, 4), "seconds": (0.1, 0.2)}, count=40)
    assert {one["steps"] for one in found} == {2, 3, 4}
    assert {one["guidance"] for one in found} == {3.5}
    assert len({one["seed"] for one in found}) == 40
    assert all(isinstance(one["seed"], int) and 0 <= one["seed"] < 2**53 for one in found)
    assert all(1600 <= len(one["x"]) <= 3200 for one in found)
    assert len({len(one["x"]) for one in found}) > 30


def test_of_several_draws_the_first_that_the_configuration_has_counts():
    ids = {"draw": "integers", "shape": [2], "high": "config.other.vocab_size"}
    features = {"draw": "normal", "shape": ["config.text.hidden"]}
    both = tuple(map(Input.model_validate, (ids, features)))
    assert drawn({"x": both})[0]["x"].shape == (5,)
    with pytest.raises(UsageError, match=r"input x: the configuration lacks other\.vocab_size"):
        drawn({"x": (both[0],)})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"draw": "image"}, "input x, draw image: .*missing .*'width'"),
        ({"draw": "audio", "minutes": 1}, "input x, draw audio: .*'minutes'"),
        ({"draw": "normal", "shape": ["rows"]}, "input x: a shape of height has no rows"),
        ("steps", "input x: a shape of height has no steps"),
    ],
)
def test_what_is_missing_is_named(given: Any, says: str):
    with pytest.raises(UsageError, match=says):
        drawn({"x": given}, {"height": 8})


def test_a_misspelt_draw_is_named():
    with pytest.raises(NotFoundError, match="Did you mean uniform"):
        drawn({"x": {"draw": "unifrm"}})
    assert all(draw.__name__ == name for name, draw in DRAWS.items())


def test_voxels_are_different_and_features_lie_in_them():
    inputs = {"grid": {"draw": "voxels"}, "feat": {"draw": "within", "grid_coord": "grid", "channels": 6}}
    for request in drawn(inputs, {"points": 500, "side": 0.05}, count=5):
        grid, feat = request["grid"], request["feat"]
        assert (grid.dtype, feat.dtype, feat.shape) == ("int64", "float32", (len(grid), 6))
        assert 250 < len(grid) == len(np.unique(grid, axis=0)) <= 500
        assert (grid.min(0) == 0).all()
        assert 20 < grid.max() <= 40, "a diameter of 2 has 40 voxels"
        corner = (feat[:, :3] - 0.05 * grid).astype(float)
        assert (np.ptp(corner, axis=0) <= 0.05 + 1e-5).all()
        assert not feat[:, 3:].any()
