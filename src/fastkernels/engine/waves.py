"""How many rows run at once when a queue does not fit, if all of it runs equally long.

    W = ceil(max(N / R, sum_i blocks_i / usable)),   rows = ceil(N / W)

N requests that wait · R rows · blocks_i that request i holds at its end · usable blocks of a cache group

Rows of equally long continuations end together. As many as fit would leave a last wave of few rows, whose
steps read the same weights for less: 794 rows and then 206 take longer than 500 twice. Where continuations
differ, or may end early, rows leave one by one and others enter: no share is better than what fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fastkernels.engine.cache import BlockGroup
from fastkernels.engine.forecast import Lengths
from fastkernels.engine.requests import Request

UNLIMITED = 1 << 30


def equal_share(
    waiting: Sequence[Request], lengths: Lengths, max_rows: int, groups: Iterable[tuple[BlockGroup, int]]
) -> int:
    """Rows of each wave, `UNLIMITED` where waves are no concern. groups: each with its usable blocks."""
    have = np.array([len(request.prompt) + len(request.output) for request in waiting])
    left = np.array([request.limit for request in waiting]) - have
    if len(np.unique(left)) != 1 or not all(request.runs_to_its_limit for request in waiting):
        return UNLIMITED
    ends = (have + lengths.expected(left, True)).astype(int).tolist()
    waves = -(-len(waiting) // max_rows)
    for group, usable in groups:
        waves = max(waves, -(-sum(map(group.most_held, ends)) // max(1, usable)))
    return -(-len(waiting) // waves)
