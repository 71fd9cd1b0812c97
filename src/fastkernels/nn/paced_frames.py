"""Videos on an axis of time: a step's positions follow from when its frames were taken.

temporal = floor(step * seconds of a step * positions of a second), seconds = frames of a step / fps
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.media import Item, grid_offsets
from fastkernels.nn.merged_patches import Patching, Pictures
from fastkernels.nn.program import Call

FPS = 2.0  # of the processors, where the caller says nothing


class PacedFrames(Pictures):
    """Videos, uint8 [F, H, W, 3], alone or as (frames, {"fps": 2.0}). least, most: pixels of a frame after
    resizing."""

    def __init__(
        self, placeholder: int, stage: str, patching: Patching, least: int, most: int, per_second: int
    ) -> None:
        super().__init__(placeholder, stage, patching, least, most, is_video=True)
        self.per_second = per_second

    def item(self, given: Tensor, about: Any = None) -> Item:
        fps = FPS if about is None else _fps(about)
        frames = self.frames(given)
        offsets_3N = grid_offsets(frames.steps, *self.blocks_of(frames))
        pace = np.float32(self.patching.frames / fps)
        offsets_3N[0] = (offsets_3N[0].astype(np.float32) * pace * np.float32(self.per_second)).astype(int)
        return Item(Call(self.stage, frames), (offsets_3N,))


def _fps(about: Any) -> float:
    fps = about.get("fps") if isinstance(about, Mapping) and about.keys() == {"fps"} else None
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < float("inf"):
        raise RequestError(f"beside a video stands {{'fps': frames of a second}}, not {about!r:.60}")
    return float(fps)
