"""What the judge saw beside a candidate's claims, for the report: how far they are borne out."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import numpy as np

from fastkernels.records import Integrity
from fastkernels.runner.account import MIN_READINGS, Slack, Times
from fastkernels.runner.blocks import Blocks
from fastkernels.runner.reading import Reading
from fastkernels.runner.sampling import Sampled


def seen(sampled: Sampled, slack: Slack) -> Integrity | None:
    """None of fewer calls than windows can be compared of."""
    blocks = sampled.blocks
    if len(blocks.c) < MIN_READINGS:
        return None
    times = Times.of(blocks.c, (blocks.a, blocks.a2), works_alone=False)
    hidden_ns, most_ns = max(times.compared(times.windows, slack), key=lambda pair: pair[0] - pair[1])
    beyond_us = [float(np.median(column)) / 1e3 for column in times.windows]
    return Integrity(
        beyond_us=(beyond_us[0], beyond_us[1], beyond_us[2]),
        hidden_us=hidden_ns / 1e3,
        may_hide_us=most_ns / 1e3,
        alone_us=_of_sides(sampled.alone, lambda reading: reading.ns),
        walk_us=_of_sides(sampled.half, lambda reading: reading.walk_ns),
    )


def _of_sides(blocks: Blocks, ns_of: Callable[[Reading], float | None]) -> tuple[float, float, float] | None:
    """Medians in us of the candidate, A and A'."""
    found = [[ns for r in side if (ns := ns_of(r)) is not None] for side in (blocks.c, blocks.a, blocks.a2)]
    if not all(found):
        return None
    ours, theirs, again = (median(side) / 1e3 for side in found)
    return ours, theirs, again
