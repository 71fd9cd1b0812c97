"""Images that cross to a side and are answered there in batches: what trials with images do alike.

`count_of`: the key under which the side's answer says how many it has.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from fastkernels.records import Failure
from fastkernels.registry.schema import GenerationWorkload, ImageWorkload
from fastkernels.runner.sides import SideFailure, SideHandle


def run(side: SideHandle, do: str, count_of: str, images: Sequence[Any], batch: int) -> float:
    """Seconds from the word to begin to the word that all is there."""
    side.call("load", images=images)
    begin = time.perf_counter()
    answer = side.call(do, batch=batch)
    seconds = time.perf_counter() - begin
    if (count := answer.get(count_of)) != len(images):
        problem = f"asked for {len(images)} {count_of}, got {count}"
        raise SideFailure(side.side, Failure(message=problem))
    return seconds


def chosen(rng: random.Random, count: int, most: int) -> list[int]:
    """Places of a few of `count` images, in order."""
    return sorted(rng.sample(range(count), min(most, count)))


def amount(workload: ImageWorkload | GenerationWorkload) -> float:
    """Images of a workload whose images a second count; batches of one whose seconds a batch count."""
    return workload.requests if workload.kind == "throughput" else workload.requests / workload.batch
