"""Whether threads of torch are held up. An operator waits for its last thread, and a thread whose core is
busy with other work comes milliseconds late: the median of such times is steady, and no time of the operator.
"""

from __future__ import annotations

import statistics
import time

import torch

MOST_SLOWER = 2.0  # all threads against one, for what they should do faster
_CALLS, _SIZE = 25, 1 << 17  # of a small operator, large enough for torch to divide it


def seconds(threads: int) -> float:
    """Median of one call of a small operator by so many threads."""
    before, x = torch.get_num_threads(), torch.ones(_SIZE)
    torch.set_num_threads(threads)
    try:
        return statistics.median(_once(x) for _ in range(_CALLS))
    finally:
        torch.set_num_threads(before)


def held_up() -> str | None:
    """How far this process's threads are, in words; None where they are not."""
    threads = torch.get_num_threads()
    if threads == 1 or (ratio := seconds(threads) / seconds(1)) <= MOST_SLOWER:
        return None
    return f"{threads} threads take {ratio:.0f} times as long as one, as where other work keeps a core busy"


def _once(x: torch.Tensor) -> float:
    begin = time.perf_counter()
    x.add_(1)
    return time.perf_counter() - begin
