"""How sweeps time what they try, and when they stop trying."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def median_us(replay: Callable[[], object], replays: int, warm_ups: int) -> float:
    """Of a replay, by events on the stream around each; the first `warm_ups` do not count."""
    times = []
    for _ in range(warm_ups + replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[warm_ups:])


def is_lost(error: Exception) -> bool:
    """Whether the device is lost with it, and every later time."""
    return any(word in str(error) for word in ("illegal", "misaligned", "unspecified launch"))
