"""What requests are made of, by the names that architectures choose. Only the judge knows what is drawn.

    image      uint8 [height, width, 3]: a coarse random grid of colours under noise
    video      uint8 [frames, height, width, 3]: such an image that moves
    audio      float32 [N] within -1 .. 1, `seconds` long: tones that change, and noise
    normal     float32 of `shape`
    uniform    float32 of `shape` from low to high
    integers   int64 of `shape` from low to below high: token ids, classes
    lengths    int64 [len(most), rows] of bags: each table's `most`; up to it where `ragged` is not 0
    entries    int64 [sum of lengths]: ids in the bags of each table, below its `high`
    subset     int64 [count] of different integers from 0 to below high, rising
    orbit      float32 [4, 4]: the view of a camera that looks at the middle, from anywhere on an orbit of
               about this radius
    intrinsics float32 [3, 3]: of a camera with the middle of its image in the axis
    voxels     int64 [n, 3] from 0: which voxels of this side have one of `points` on ellipsoids, all of them
               within a sphere of radius 1
    within     float32 [n, channels]: a place in each of these voxels, from the middle of them all; then zeros
    seed       an integer of 53 bits

A parameter is a number, the name of an entry of the request's shape or of an input before it, an entry of the
configuration (`config.vocab_size`), or a list of those. What is left out is the shape's entry of that name.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

from fastkernels.errors import NotFoundError, UsageError
from fastkernels.loader.splats import FOCAL, look_at_middle
from fastkernels.registry.schema import Input, Shape

CONFIG = "config."
SAMPLING_RATE = 16000
TONES = 6  # of a clip, which change once in each part of it
PARTS = 4
COARSE = 8  # an image is a random grid of up to 8 x 8 colours under noise: plain noise looks all alike
FASTEST = 4  # pixels from one frame to the next
MOST_ELLIPSOIDS = 6
SEED_BITS = 53  # integers that JSON carries whole

Request = dict[str, Any]  # arrays and numbers by name


class Requests:
    """Requests with the inputs that an architecture declares. UsageError where a configuration lacks what
    they are drawn by."""

    def __init__(self, inputs: Mapping[str, Any], config: Mapping[str, Any], rng: random.Random) -> None:
        self._config, self._rng = config, rng
        self._inputs = {name: self._served(name, given) for name, given in inputs.items()}

    def of(self, shapes: Sequence[Shape], count: int) -> list[Request]:
        """Fresh ones; shapes take turns."""
        if not self._inputs:
            return [{} for _ in range(count)]
        generator = np.random.default_rng(self._rng.getrandbits(64))
        return [self._one(shape, generator) for shape in islice(cycle(shapes), count)]

    def _one(self, shape: Shape, generator: np.random.Generator) -> Request:
        numbers = {name: _number(value, generator) for name, value in shape.items()}
        request: Request = {}
        for name, given in self._inputs.items():
            known = {**numbers, **request}
            is_drawn = isinstance(given, Input)
            request[name] = (
                self._drawn(name, given, known, generator) if is_drawn else self._value(name, given, known)
            )
        return request

    def _drawn(
        self, name: str, given: Input, numbers: Mapping[str, Any], generator: np.random.Generator
    ) -> Any:
        _, *known = inspect.signature(DRAWS[given.draw]).parameters
        asked = {one: self._value(name, value, numbers) for one, value in given.parameters.items()}
        asked = {**{one: numbers[one] for one in known if one in numbers}, **asked}
        try:
            return DRAWS[given.draw](generator, **asked)
        except TypeError as error:
            raise UsageError(f"input {name}, draw {given.draw}: {error}") from error

    def _value(self, name: str, value: Any, numbers: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [self._value(name, one, numbers) for one in value]
        if not isinstance(value, str):
            return value
        found = _entry(self._config, value) if value.startswith(CONFIG) else numbers.get(value)
        if found is None:
            where = "the configuration" if value.startswith(CONFIG) else f"a shape of {', '.join(numbers)}"
            raise UsageError(f"input {name}: {where} has no {value.removeprefix(CONFIG)}")
        return found

    def _served(self, name: str, given: Any) -> Any:
        """Of several draws the first whose entries the configuration has."""
        choices = given if isinstance(given, tuple) else (given,)
        for one in choices:
            if isinstance(one, Input) and one.draw not in DRAWS:
                raise NotFoundError("draw", one.draw, DRAWS, "src/fastkernels/runner/models/draws.py")
        needed = [_entries(one.parameters) if isinstance(one, Input) else [] for one in choices]
        for one, entries in zip(choices, needed):
            if all(_entry(self._config, entry) is not None for entry in entries):
                return one
        missing = " or ".join(", ".join(entries) for entries in needed).replace(CONFIG, "")
        raise UsageError(f"input {name}: the configuration lacks {missing}")


def _entries(parameters: Mapping[str, Any]) -> list[str]:
    """The entries of the configuration among parameters."""
    flat = [one for value in parameters.values() for one in (value if isinstance(value, list) else [value])]
    return [one for one in flat if isinstance(one, str) and one.startswith(CONFIG)]


def _entry(config: Mapping[str, Any], path: str) -> Any:
    found: Any = config
    for key in path.removeprefix(CONFIG).split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _number(value: Any, generator: np.random.Generator) -> int | float:
    if not isinstance(value, tuple):
        return value
    if all(isinstance(end, int) for end in value):
        return int(generator.integers(*value, endpoint=True))
    return float(generator.uniform(*value))


# ---------------------------------------------------------------- the draws


def image(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    rows, columns = generator.integers(1, COARSE + 1, 2)
    colours = generator.integers(0, 256, (rows, columns, 3), dtype=np.uint8) // 4 * 3
    y, x = (np.arange(side) * parts // side for side, parts in ((height, rows), (width, columns)))
    # A workload has thousands of images: whole bytes are drawn five times as fast as any other range, and
    # rows taken forty times as fast as by indexing.
    pixels_HW3 = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels_HW3 >>= 2
    pixels_HW3 += colours.take(x, axis=1).take(y, axis=0)
    return pixels_HW3


def video(generator: np.random.Generator, frames: int, height: int, width: int) -> np.ndarray:
    scene_HW3 = image(generator, height, width)
    step = generator.integers(1, FASTEST + 1, 2) * generator.choice((-1, 1), 2)
    return np.stack([np.roll(scene_HW3, frame * step, axis=(0, 1)) for frame in range(frames)])


def audio(generator: np.random.Generator, seconds: float, sampling_rate: int = SAMPLING_RATE) -> np.ndarray:
    """Tones between 60 and 6,000 Hz that change from part to part, and noise."""
    samples = round(seconds * sampling_rate)
    at_N = np.arange(samples) / sampling_rate
    part_N = np.arange(samples) * PARTS // samples
    hz = 60 * 100 ** generator.uniform(size=(PARTS, TONES))
    loud = generator.uniform(0, 1 / TONES, (PARTS, TONES))
    tones_NK = np.sin(2 * np.pi * at_N[:, None] * hz[part_N]) * loud[part_N]
    noise_N = generator.normal(size=samples) * generator.uniform(0.001, 0.03)
    return np.clip(tones_NK.sum(1) + noise_N, -1, 1).astype(np.float32)


def normal(generator: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return generator.standard_normal(shape, dtype=np.float32)


def uniform(
    generator: np.random.Generator, shape: Sequence[int], low: float = 0, high: float = 1
) -> np.ndarray:
    return generator.uniform(low, high, shape).astype(np.float32)


def integers(generator: np.random.Generator, shape: Sequence[int], high: int, low: int = 0) -> np.ndarray:
    return generator.integers(low, high, shape)


def lengths(generator: np.random.Generator, most: Sequence[int], rows: int, ragged: int = 0) -> np.ndarray:
    most_TR = np.repeat(np.array(most)[:, None], rows, axis=1)
    return generator.integers(0, most_TR, endpoint=True) if ragged else most_TR


def entries(generator: np.random.Generator, lengths: np.ndarray, high: Sequence[int]) -> np.ndarray:
    parts = [generator.integers(0, rows, count) for rows, count in zip(high, lengths.sum(1), strict=True)]
    return np.concatenate(parts)


def subset(generator: np.random.Generator, count: int, high: int) -> np.ndarray:
    return np.sort(generator.choice(high, count, replace=False))


def orbit(generator: np.random.Generator, distance: float) -> np.ndarray:
    angle, share = generator.uniform(0, 2 * np.pi), generator.uniform(0.9, 1.1)
    return look_at_middle(angle, share * distance).numpy().astype(np.float32)


def intrinsics(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    focal = FOCAL * max(height, width)
    return np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=np.float32)


def voxels(generator: np.random.Generator, points: int, side: float) -> np.ndarray:
    parts = int(generator.integers(2, MOST_ELLIPSOIDS + 1))
    of_N = generator.integers(parts, size=points)
    middle_E3, axes_E3 = generator.uniform(-1, 1, (parts, 3)), generator.uniform(0.1, 1, (parts, 3))
    turn_E33 = np.linalg.qr(generator.normal(size=(parts, 3, 3)))[0]
    on_N3 = generator.normal(size=(points, 3))
    on_N3 *= axes_E3[of_N] / np.linalg.norm(on_N3, axis=1, keepdims=True)
    at_N3 = middle_E3[of_N] + (turn_E33[of_N] @ on_N3[..., None])[..., 0]
    at_N3 -= at_N3.mean(0)
    at_N3 /= np.linalg.norm(at_N3, axis=1).max()
    return np.unique(((at_N3 - at_N3.min(0)) / side).astype(np.int64), axis=0)


def within(generator: np.random.Generator, grid_coord: np.ndarray, side: float, channels: int) -> np.ndarray:
    at_N3 = (grid_coord + generator.uniform(size=grid_coord.shape)) * side
    at_N3 -= at_N3.mean(0)
    return np.pad(at_N3, ((0, 0), (0, channels - 3))).astype(np.float32)


def seed(generator: np.random.Generator) -> int:
    return int(generator.integers(2**SEED_BITS))


DRAWS: dict[str, Callable[..., Any]] = {
    draw.__name__: draw
    for draw in (
        image,
        video,
        audio,
        normal,
        uniform,
        integers,
        lengths,
        entries,
        subset,
        orbit,
        intrinsics,
        voxels,
        within,
        seed,
    )
}
