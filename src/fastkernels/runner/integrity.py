"""What the judge saw beside a candidate's claims, for the report: how far they are borne out."""

from __future__ import annotations

from statistics import median

import numpy as np

from fastkernels.records import Integrity
from fastkernels.runner.account import MIN_READINGS, Slack, Times
from fastkernels.runner.sampling import Sampled


def seen(sampled: Sampled, slack: Slack, looks: tuple[int, int] | None = None) -> Integrity | None:
    """None of fewer calls than windows can be compared of. looks: at GPUs, busy ones and all."""
    blocks = sampled.blocks
    if len(blocks.c) < MIN_READINGS:
        return None
    times = Times.of(blocks.c, (blocks.a, blocks.a2))
    hidden_ns, most_ns = max(times.compared(slack), key=lambda pair: pair[0] - pair[1])
    c_us, a_us, a2_us = (float(np.median(column)) / 1e3 for column in times.windows)
    return Integrity(
        beyond_us=(c_us, a_us, a2_us),
        hidden_us=hidden_ns / 1e3,
        may_hide_us=most_ns / 1e3,
        alone_us=_medians_us(sampled.alone.of_sides(lambda reading: reading.ns)),
        walk_us=_medians_us(sampled.half.of_sides(lambda reading: reading.walk_ns)),
        looks=looks,
    )


def _medians_us(sides_ns: list[list[float]]) -> tuple[float, float, float] | None:
    if not all(sides_ns):
        return None
    c_us, a_us, a2_us = (median(side) / 1e3 for side in sides_ns)
    return c_us, a_us, a2_us
