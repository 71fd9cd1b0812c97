"""Images that are answered or made in batches: what trials with images do alike.

A batch reaches a side with the word to begin, when the one before is answered: whoever had them all could
answer them together, and a batch of one would be an image of a large batch. The judge's clock runs until the
side has said a digest of every answer of a batch. Which of them it wants to see it says when the run is over:
fetching all would take longer than some runs, and what is not there yet has no digest.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from fastkernels.records import Failure
from fastkernels.registry.workloads import GenerationWorkload, ImageWorkload
from fastkernels.runner.arrays import digest, unpacked
from fastkernels.runner.replies import Arrays, Digests, garbled, parsed, read
from fastkernels.runner.sides import SideFailure, SideHandle


def run(
    side: SideHandle,
    do: str,
    inputs: Sequence[Any],
    batch: int,
    given: Callable[[Sequence[Any]], AbstractContextManager[dict[str, Any]]],
) -> tuple[list[float], list[str]]:
    """Seconds of each batch, and the digests. given: arguments that hand a batch over."""
    seconds: list[float] = []
    digests: list[str] = []
    for start in range(0, len(inputs), batch):
        part = inputs[start : start + batch]
        with given(part) as arguments:
            begin = time.perf_counter()
            said = side.call(do, start=start, **arguments)
            seconds.append(time.perf_counter() - begin)
        found = parsed(side, Digests, do, said).digests
        if len(found) != len(part):
            message = f"asked for {len(part)} answers to '{do}', got {len(found)}"
            raise SideFailure(side.side, Failure(message=message))
        digests += found
    return seconds, digests


def answers(side: SideHandle, digests: Sequence[str], chosen: Sequence[int]) -> list[np.ndarray]:
    """Those answers of the last run, float32. SideFailure where one is not what its digest is of."""
    found = arrays(side, "outputs", len(chosen), chosen=list(chosen))
    for index, answer in zip(chosen, found, strict=True):
        if digest(answer) != digests[index]:
            message = f"TAMPERED(late-answer): answer {index} was another one when the clock stopped"
            raise SideFailure(side.side, Failure(message=message))
    return found


def arrays(side: SideHandle, do: str, count: int, **arguments: Any) -> list[np.ndarray]:
    """`count` arrays that a side is asked for."""
    found = read(side, Arrays, do, **arguments).arrays
    if len(found) != count:
        raise garbled(side, do, f"{len(found)} arrays, not {count}")
    try:
        return [unpacked(array) for array in found]
    except ValueError as error:
        raise garbled(side, do, str(error)) from error


def chosen(rng: random.Random, count: int, most: int) -> list[int]:
    """Places of a few of `count` images, in order."""
    return sorted(rng.sample(range(count), min(most, count)))


def measured(workload: ImageWorkload | GenerationWorkload, seconds: Sequence[float]) -> float:
    """Seconds of a run by those of its batches: all of them where images a second count. Where seconds a
    batch count the median batch does, as the models' own harnesses say latencies: some batch of hundreds
    meets a busy host, and waits for longer than all others take."""
    return sum(seconds) if workload.kind == "throughput" else statistics.median(seconds) * len(seconds)


class BatchedAnswers:
    """The part of an Answers that is the same for all that answers images."""

    def amount(self, workload: ImageWorkload | GenerationWorkload) -> float:
        """Images of a workload whose images a second count; batches of one whose seconds a batch count."""
        return workload.requests if workload.kind == "throughput" else workload.requests / workload.batch

    def kept(
        self, inputs: Sequence[Any], baseline: Any, candidate: Mapping[int, Any]
    ) -> list[tuple[Any, Any]]:
        """Images with their answers."""
        return [(inputs[i], answer) for i, answer in candidate.items()]

    def audited(self, found: list[float]) -> list[float]:
        return found

    def repeated(self, runs: Sequence[Any]) -> float:
        """An image follows from no other one."""
        return 0.0
