"""Media beside a prompt, whose rows stand in the place of its placeholders.

    def stages(self):             return {"encode": Stage(MergedPatches(..., self.place))}
    def media(self, processor):   return {"image": Pictures(placeholder, "encode", ...)}

A model with `media` serves {"prompt": ..., "multi_modal_data": {"image": [...]}}. An item is a call of a
stage, its tower, with one argument that has a `digest`. The call's result has a row for each token of the
item [N, D]; `forward` gets such rows behind ids and positions, and for each token which row stands for it.
An item's rows stand in one run, or in several with text between them: a video's steps with their times.
processor: the checkpoint's preprocessor_config.json, {} without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastkernels.nn.program import Call


@dataclass(frozen=True, slots=True)
class Said:
    """What stands with the runs of an item: a text ahead of each, and an id on both sides of each. In a
    prompt with one placeholder for the item these ids may stand around it: they are those of the runs then.
    texts: None where the caller did not say what they tell; a prompt needs a placeholder for each row then.
    """

    texts: tuple[str, ...] | None
    around: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One medium, ready for its tower. runs: of each the positions [3, N] of its rows on three axes
    (temporal, height, width), counted from where the text ahead of it ends. said: None where rows alone stand
    for it."""

    call: Call
    runs: tuple[NDArray[np.int64], ...]
    said: Said | None = None

    @property
    def digest(self) -> bytes:
        return content_of(self.call)

    @property
    def num_tokens(self) -> int:
        return sum(offsets_3N.shape[1] for offsets_3N in self.runs)


def content_of(call: Call) -> bytes:
    """What tells media apart: equal for calls of a tower with equal results alone."""
    return call.args[0].digest


class Medium(Protocol):
    """One kind of media: the id that stands for it in a prompt, and how what a caller has becomes an item."""

    placeholder: int

    def item(self, given: Tensor, about: Any = None) -> Item:
        """about: what the caller says of it. RequestError for what the model cannot take."""
        ...


class TakesMedia(Protocol):
    def media(self, processor: Mapping[str, Any]) -> dict[str, Medium]: ...


def grid_offsets(steps: int, rows: int, columns: int, pace: int = 1) -> NDArray[np.int64]:
    """Offsets [3, steps * rows * columns] of a grid, step by step and row by row. pace: of the temporal
    axis."""
    at = np.indices((steps, rows, columns)).reshape(3, -1)
    return at * np.array([[pace], [1], [1]])
