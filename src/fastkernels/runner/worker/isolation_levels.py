"""How a candidate's worker is separated: by the first of these levels at which its device can be used.

Where a kernel gives namespaces, it may be that no GPU is seen from within, or that no memory is shared into
them.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from fastkernels.errors import MachineError
from fastkernels.records import Device
from fastkernels.runner.worker.pool import Worker, WorkerProblem
from fastkernels.runner.worker.resources import default_threads


class IsolationLevel(NamedTuple):
    """`namespaces` where the kernel gives them, `user`: one of its own where it gives none to root."""

    namespaces: bool = False
    user: bool = False


NONE = IsolationLevel()
LEVELS = (IsolationLevel(namespaces=True, user=True), IsolationLevel(user=True), NONE)


@functools.cache
def with_device(device: Device) -> IsolationLevel:
    """The best for a worker that opens its device by itself: a process without a candidate tries them, once
    for all workers. Raises MachineError where the device can be used from behind none."""
    if device == "cpu":
        return LEVELS[0]
    for level in LEVELS:
        with Worker("a look at the device", default_threads(), **level._asdict()) as worker:
            try:
                worker.start("fastkernels.runner.inside.kernel_side:KernelSide", device=device, threads=1)
            except WorkerProblem as problem:
                said = problem.failure
            else:
                return level
    raise MachineError(f"no worker can use the device {device}: {said.message}\n{said.output}")
