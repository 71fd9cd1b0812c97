"""Pairs of versions: what is held against what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fastkernels.records import KernelReport
from fastkernels.runner.kernel_trial.request import Work

Key = tuple[str, str]  # task and case
Side = Literal["base", "head"]


@dataclass(frozen=True)
class Version:
    """One side of a pair: layers over the baseline of a source (None: ours), and the cases that it has."""

    works: Mapping[Key, Work]
    layers: tuple[Path, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    source: Path | None = None

    @property
    def is_baseline(self) -> bool:
        """Whether this is the baseline itself, which nobody has to judge first."""
        return not self.layers and self.source is None


@dataclass(frozen=True)
class Pair:
    """`name` is what rows call the candidate."""

    name: str
    head: Version
    base: Version

    def side(self, which: Side) -> Version:
        return self.head if which == "head" else self.base


@dataclass(frozen=True)
class Comparison:
    """`head` and `base` as a user would say them."""

    head: str
    base: str
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()  # the head's task files, for the history
    report: KernelReport | None = None  # that names the base
