"""How many rows run at once when a queue does not fit, if all of it runs equally long.

    W = ceil(max(N / R, sum_i blocks_i / usable)),   rows = ceil(N / W)

N requests that wait · R rows · blocks_i that request i holds at its end · usable blocks of a cache group

Rows of equally long continuations end together. As many as fit would leave a last wave of few rows, whose
steps read the same weights for less: 794 rows and then 206 take longer than 500 twice. Where continuations
differ, or may end early, rows leave one by one and others enter: no share is better than what fits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from fastkernels.engine.cache import BlockGroup, Ints
from fastkernels.engine.forecast import Demand, Lengths
from fastkernels.engine.requests import Request

UNLIMITED = 1 << 30
# Of more waves the last one is a small part, and each would look through all that wait: what a request costs
# would grow with the queue.
MOST_WAVES = 16

Groups = Collection[tuple[BlockGroup, int]]


def equal_share(waiting: Sequence[Request], lengths: Lengths, max_rows: int, groups: Groups) -> int:
    """Rows of each wave, `UNLIMITED` where waves are no concern. groups: each with its usable blocks."""
    have_N, left_N = _lengths([waiting[0]])
    if len(waiting) * _waves(have_N, left_N, lengths, max_rows, groups) > MOST_WAVES:
        return UNLIMITED
    have_N, left_N = _lengths(waiting)
    if (left_N != left_N[0]).any() or not all(request.runs_to_its_limit for request in waiting):
        return UNLIMITED
    return -(-len(waiting) // math.ceil(_waves(have_N, left_N, lengths, max_rows, groups)))


def _lengths(requests: Sequence[Request]) -> tuple[Ints, Ints]:
    """Positions that requests have, and that are left to their limits."""
    have_N = np.array([len(request.prompt) + len(request.output) for request in requests])
    return have_N, np.array([request.limit for request in requests]) - have_N


def _waves(have_N: Ints, left_N: Ints, lengths: Lengths, max_rows: int, groups: Groups) -> float:
    """How many times rows and blocks they take in all, counted as admission counts."""
    grown_N = lengths.expected(left_N, True)
    waves = len(have_N) / max_rows
    for group, usable in groups:
        blocks = Demand(group, have_N.astype(np.float64), grown_N, 0).most()
        waves = max(waves, blocks / max(1, usable))
    return waves
