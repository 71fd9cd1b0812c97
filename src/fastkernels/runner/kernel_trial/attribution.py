"""Who made the kernels of each case of a candidate: one profiled call a case, after all of them were timed.

look        `origins` and `kernels` of a row, from its own case: a candidate may dispatch by shape
foreign     notes on what is not its own, by name
left_out    rows that the track `authored` leaves out
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from fastkernels.measure import attribution
from fastkernels.records import KernelRow, KernelShare
from fastkernels.runner.kernel_trial.request import Job, Work
from fastkernels.runner.kernel_trial.worker_set import WorkerSet
from fastkernels.runner.worker.worker_calls import Trouble

# Of device time, for the track `authored`.
AUTHORED_SHARE = 0.5
SEEN = ("PASSED", "UNSTABLE")  # a candidate that is wrong is not looked at any more


def look(
    worker_set: WorkerSet, job: Job, work: Work, authored: frozenset[str], again: bool
) -> dict[str, Any]:
    """The columns of one row; empty where no kernel was seen."""
    try:
        with worker_set.loaded(job, work.case, candidate=True, again=again) as handle:
            launched = handle.launched()
    except Trouble:
        return {}  # it passed before: its row says what counts
    shares = attribution.shares(launched, authored)
    return {"origins": shares, "kernels": attribution.largest(launched, authored)} if shares else {}


def foreign(rows: Sequence[KernelRow]) -> Iterator[str]:
    """Notes for each candidate and task: the kernels that are not its own, with their largest share of a
    case."""
    seen = [row for row in rows if row.verdict in SEEN]
    for (candidate, task), group in groupby(seen, key=lambda row: (row.candidate, row.task)):
        cases = list(group)
        most: dict[str, KernelShare] = {}
        for kernel in (kernel for row in cases for kernel in row.kernels or ()):
            if kernel.origin != "authored" and kernel.share >= most.get(kernel.name, kernel).share:
                most[kernel.name] = kernel
        if most:
            ordered = sorted(most.values(), key=lambda kernel: -kernel.share)
            names = ", ".join(f"{k.name} ({k.origin}, {100 * k.share:.0f} %)" for k in ordered)
            yield f"{candidate} in {task}: kernels that are not its own, up to this share of a case: {names}"
        if blind := sum(row.origins is None for row in cases):
            where = "1 case" if blind == 1 else f"{blind} cases"
            yield f"{candidate} in {task}: no kernel was seen in {where}, so nothing counts as authored there"


def left_out(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """Those that pass with less than half of their device time in kernels of the candidate. What fails stays:
    nobody looked at it."""
    return [row for row in rows if row.verdict in SEEN and row.authored < AUTHORED_SHARE]
