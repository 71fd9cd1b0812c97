"""What media put into a prompt: rows in the place of embeddings, and positions on three axes.

    place       0 1 2 3 4 5 6 7        a prompt with an image of 2 x 2 rows behind two tokens
    span            2 3 4 5
    temporal    0 1 2 2 2 2 4 5        a span begins where the text ahead of it ends; behind it text goes on
    height      0 1 2 2 3 3 4 5        after the largest position of all axes
    width       0 1 2 3 2 3 4 5
    shift       -2                     of tokens behind the last span: their position, less their place

The engine counts places: they are what caches and tables know. Positions are what the model rotates by; a
model without three axes has its places as positions.

N rows of a span · S places up to the end of the last span · D hidden
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fastkernels.engine.core.cache import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Rows of one medium, all of them or a run: they stand at the places start .. start+N-1. digest: of what
    they were made of. whole: the medium's rows, which count as held while somebody has them."""

    start: int
    rows_ND: Tensor
    digest: bytes
    whole: Tensor | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.rows_ND)


@dataclass(frozen=True, slots=True, eq=False)
class Splice:
    """The spans of a prompt in order, and the positions of its first S places."""

    spans: tuple[Span, ...]
    positions_3S: Ints
    shift: int

    @property
    def end(self) -> int:
        """Behind the last span; later places have their shifted place as position."""
        return self.positions_3S.shape[1]

    def positions(self, begin: int, end: int) -> Ints:
        """[3, end - begin]"""
        behind = np.arange(max(begin, self.end), end) + self.shift
        return np.concatenate([self.positions_3S[:, begin:end], np.tile(behind, (3, 1))], axis=1)

    def rows(self, begin: int, end: int) -> Iterator[tuple[int, Tensor]]:
        """What stands at the places begin .. end-1: the place of each run of rows, and the run."""
        for span in self.spans:
            first, last = max(begin, span.start), min(end, span.end)
            if first < last:
                yield first, span.rows_ND[first - span.start : last - span.start]

    def digests(self, begin: int, end: int) -> bytes:
        """Of the media that have rows at the places begin .. end-1."""
        return b"".join(span.digest for span in self.spans if span.start < end and begin < span.end)


def positions_of(starts: Sequence[int], offsets: Sequence[Ints]) -> tuple[Ints, int]:
    """Positions [3, S] up to the end of the last span, and the shift behind it. starts: the spans' first
    places; offsets: of each the positions [3, N] of its rows, from where the text ahead of it ends."""
    parts: list[Ints] = []
    place = position = 0
    for start, offsets_3N in zip(starts, offsets, strict=True):
        text = np.arange(position, position + start - place)
        position += start - place
        parts += [np.tile(text, (3, 1)), position + offsets_3N]
        position += int(offsets_3N.max()) + 1
        place = start + offsets_3N.shape[1]
    return np.concatenate(parts, axis=1), position - place
