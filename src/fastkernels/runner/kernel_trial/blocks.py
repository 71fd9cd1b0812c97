"""The blocks of a trial that count: one reading of baseline A, of the candidate and of baseline A' each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fastkernels.measure import stats
from fastkernels.runner.worker.reading import Reading

BLOCKS_PER_ROUND = 4  # neighbours share clocks and heat; the bootstrap resamples them together


@dataclass
class Blocks:
    """Blocks that count, in order."""

    a: list[Reading] = field(default_factory=list)
    c: list[Reading] = field(default_factory=list)
    a2: list[Reading] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    dropped: int = 0

    def add(self, index: int, a: Reading, c: Reading, a2: Reading) -> None:
        if not (a.hidden and c.hidden and a2.hidden):
            self.dropped += 1
            return
        for column, reading in ((self.a, a), (self.c, c), (self.a2, a2)):
            column.append(light(reading))
        self.rounds.append(index // BLOCKS_PER_ROUND)

    def unthrottled(self) -> Blocks:
        """Without the blocks in which a side ran below its usual clock."""
        if not self.c:
            return self
        clocks = [[r.clock_mhz for r in column] for column in (self.a, self.c, self.a2)]
        keep = [i for i, good in enumerate(stats.keep_unthrottled(*clocks)) if good]
        a, c, a2 = ([column[i] for i in keep] for column in (self.a, self.c, self.a2))
        return Blocks(a, c, a2, [self.rounds[i] for i in keep], self.dropped + len(self.c) - len(keep))

    @property
    def candidate_waits(self) -> bool:
        """Whether a sample of the candidate has the host's work in it."""
        return any(reading.waits for reading in self.c)

    @property
    def baseline_waits(self) -> bool:
        """Whether samples of the baseline have it; of both at once, since one may be a hiccup."""
        return any(a.waits and a2.waits for a, a2 in zip(self.a, self.a2, strict=True))

    def baseline_ns(self) -> np.ndarray:
        """Of both baseline processes, A first."""
        return np.concatenate([durations_ns(self.a), durations_ns(self.a2)])

    def of_sides(self, number: Callable[[Reading], float | None]) -> list[list[float]]:
        """This number of the readings that have it: of the candidate, A and A'."""
        return [
            [value for reading in side if (value := number(reading)) is not None]
            for side in (self.c, self.a, self.a2)
        ]

    def speedup(self) -> stats.Interval:
        """The median over the pairs (A, C) and (A', C) of every block; rounds are resampled whole.

        Not sqrt(A A') / C: durations have a long tail to one side only, and of two baseline calls one is
        disturbed more often than the single candidate's. That alone made identical code 3 to 8 % faster on a
        busy CPU.
        """
        candidate_ns = np.tile(durations_ns(self.c), 2)
        return stats.paired_ratio(self.baseline_ns(), candidate_ns, [*self.rounds, *self.rounds])

    def identical(self) -> stats.Interval:
        """A / A': what two processes with the same code differ by."""
        return stats.paired_ratio(durations_ns(self.a), durations_ns(self.a2), self.rounds)


def durations_ns(readings: Sequence[Reading]) -> np.ndarray:
    return np.array([r.ns for r in readings], dtype=np.float64)


def light(reading: Reading) -> Reading:
    """The numbers of a reading, without its tensors, which would fill the memory."""
    return replace(reading, described=(), outputs={}, echo={}, flags={})
