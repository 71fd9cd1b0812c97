"""Whose fault it is that a device has no memory left for a trial.

The judge, two baselines and a candidate share it. A candidate that fills it would choose by that which cases
are judged: those in which it is slow would be the machine's fault, and count for nothing. And where a case is
too large for the device, the candidate's process may be the first to learn of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastkernels.errors import MachineError
from fastkernels.judge.verdict import Verdict
from fastkernels.measure.room import in_short, is_lacking, is_the_machines
from fastkernels.records import Failure
from fastkernels.runner.worker.pool import Worker

# Of the memory of all GPUs: that a candidate may hold beyond the baseline (working memory of another
# algorithm, what its allocator keeps), and beyond which a device is not full.
SHARE = 1 / 16


def unjudged(error: Exception) -> Verdict | None:
    """The verdict where it is this machine that cannot judge a case; None where the error is the judge's."""
    if not is_the_machines(error):
        return None
    return _cannot(str(error) if isinstance(error, MachineError) else in_short(error))


def settled(verdict: Verdict, candidate: Worker, baselines: Sequence[Worker], gpus: Sequence[int]) -> Verdict:
    """The verdict of a trial once it is known who holds the memory that somebody lacked: as it was where
    nobody did. Ends the processes: what they held is free then."""
    if verdict.failure is None or not is_lacking("", verdict.failure.message):
        return verdict
    if not candidate.alive or not all(baseline.alive for baseline in baselines):
        return verdict
    total = sum(torch.cuda.mem_get_info(gpu)[1] for gpu in gpus)
    if verdict.status == "OOM" and _free_bytes(gpus) > SHARE * total:
        return verdict  # asked for more than there was
    theirs = _held_bytes(candidate, gpus)
    ours = max(_held_bytes(baseline, gpus) for baseline in baselines)
    if theirs - ours > SHARE * total:
        message = (
            f"its process kept {theirs / 1e9:.1f} GB of the device's memory (the baseline's "
            f"{ours / 1e9:.1f}), and nothing was left for the trial"
        )
        return Verdict.failed("OOM", Failure(message=message))
    if verdict.status != "OOM":
        return verdict
    return _cannot(verdict.failure.message)


def _cannot(why: str) -> Verdict:
    return Verdict.failed("INVALID_BASELINE", Failure(message=f"this machine cannot judge the case: {why}"))


def _held_bytes(worker: Worker, gpus: Sequence[int]) -> int:
    before = _free_bytes(gpus)
    worker.close()
    return _free_bytes(gpus) - before


def _free_bytes(gpus: Sequence[int]) -> int:
    return sum(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus)
