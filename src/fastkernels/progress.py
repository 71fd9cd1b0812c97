"""How far a run is, as those who do the work say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Steps done and in all, of equal weight as far as anybody knows, and what is going on."""

    done: int
    total: int
    text: str


# Hears what goes on from now; a text alone is of a step that nobody counts.
Show = Callable[[Progress | str], None]
