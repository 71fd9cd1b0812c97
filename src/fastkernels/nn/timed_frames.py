"""Videos whose steps stand in the prompt one by one, each behind the time at which its frames were taken.

    <0.2 seconds> start row row row row end <0.8 seconds> start row row row row end

A step is the frames of a patch, the last of them repeated where some are missing; its time is the mean of
its first and its last frame's. Each step is a grid of its own: time stands in the text, not in positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.media import Item, Said, grid_offsets
from fastkernels.nn.merged_patches import Patching, Pictures, fitted
from fastkernels.nn.program import Call

_FORM = (
    "{'fps': frames of a second, 'frames_indices': [number of each frame]}, the latter from 0 if not given"
)


class TimedFrames(Pictures):
    """Videos, uint8 [F, H, W, 3], alone or as (frames, {"fps": 2.0}). least, most: pixels of all frames
    after resizing. around: ids of a step's start and end."""

    def __init__(
        self, placeholder: int, stage: str, patching: Patching, least: int, most: int, around: tuple[int, int]
    ) -> None:
        super().__init__(placeholder, stage, patching, least, most, is_video=True)
        self.around = around

    def item(self, given: Tensor, about: Any = None) -> Item:
        frames = self.frames(given)
        run = grid_offsets(1, *self.blocks_of(frames))
        texts = None
        if about is not None:
            times = times_of(about, len(frames.pixels), self.patching.frames)
            texts = tuple(f"<{time:.1f} seconds>" for time in times)
        return Item(Call(self.stage, frames), (run,) * frames.steps, Said(texts, self.around))

    def sides(self, count: int, height: int, width: int) -> tuple[int, int]:
        if count < self.patching.frames:
            raise RequestError(
                f"a video of {count} frames: the model takes at least {self.patching.frames}. Give an image"
            )
        multiple = self.patching.multiple
        if min(height, width) < multiple:
            scale = max(multiple / height, multiple / width)
            height, width = int(height * scale), int(width * scale)
        return fitted(height, width, multiple, self.least, self.most, count, self.patching.frames)


def times_of(about: Any, count: int, together: int) -> list[float]:
    """Seconds of each step of `together` of `count` frames."""
    if not isinstance(about, Mapping):
        raise RequestError(f"beside a video stands {_FORM}, not {about!r:.60}")
    fps, numbers = about.get("fps"), about.get("frames_indices")
    if isinstance(fps, bool) or not isinstance(fps, Real) or not 0 < float(fps) < float("inf"):
        raise RequestError(f"fps of a video must be a positive number, not {fps!r:.60}")
    numbers = list(range(count)) if numbers is None else numbers
    are_places = isinstance(numbers, (Sequence, np.ndarray)) and all(isinstance(n, Integral) for n in numbers)
    if not are_places or len(numbers) != count or min(numbers) < 0:
        raise RequestError(
            f"frames_indices must be {count} whole numbers, one for each frame, not {numbers!r:.60}"
        )
    numbers = [int(number) for number in numbers]
    fps, numbers = float(fps), numbers + numbers[-1:] * (-count % together)
    firsts, lasts = numbers[::together], numbers[together - 1 :: together]
    return [(first / fps + last / fps) / 2 for first, last in zip(firsts, lasts, strict=True)]
