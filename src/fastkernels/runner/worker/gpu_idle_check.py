"""Whether a process that was stopped has left a GPU something to do.

SIGSTOP stops its threads, not the kernels and copies that it has enqueued. They would take turns with the
baseline's, or share its memory: beside a kernel of one thread an honest product of 2.4 ms took 4.9, and a
candidate with the baseline's code was 1.99 times as fast as the baseline (docs/record/measured.md).
"""

from __future__ import annotations

import time

from fastkernels.errors import MachineError
from fastkernels.measure.sole import SoleUse
from fastkernels.runner.worker.pool import Worker

# Times as long as alone: twice beside kernels, 1.05 to 1.17 beside copies to and from the host, and 1.026 at
# most in three runs of self-tests (docs/record/measured.md).
SHARED = 1.03
# The driver clears memory that processes have given back, as well at their end, for tens of milliseconds, and
# reads take a third longer meanwhile. Nobody is accused of what ends by itself within the time in which it
# would have to end with the process: that would be a coincidence in time and no proof.
_ENDS_S = 2.0
_MOST_MOMENTS, _MOMENTS_SHARE = 1, 0.1  # a median does not move by so few


class GpuIdleCheck:
    """Looks at GPUs while nobody of ours has a turn."""

    def __init__(self, use: SoleUse) -> None:
        self._use, self._looks, self._slow = use, 0, 0

    def wait(self) -> None:
        """Until memory that was given back is cleared."""
        self._least_slowdown()

    def broken(self, worker: Worker) -> str | None:
        """How the process, which is stopped, keeps a GPU busy; None if it does not, or for a moment, which is
        waited for. Whose work it is, shows once the process has ended. Raises MachineError where that goes
        on."""
        self._looks += 1
        if (before := self._use.slowdown()) <= SHARED:
            return None
        self._slow += 1
        if self._least_slowdown() <= SHARED:
            return None
        worker.close()
        if (after := self._least_slowdown()) > SHARED:
            self._use.begin()  # who outlives its process may stay: both sides meet it
            raise MachineError(
                f"reads of a GPU's memory take {after:.2f} times as long as they did, and no process of ours "
                "is the cause. If somebody else works there (nvidia-smi says who), run where nobody does"
            )
        return (
            f"kept a GPU busy (reads of its memory took {before:.2f} times as long as alone, for "
            f"{_ENDS_S:g} s, and {after:.2f} once the process had ended)"
        )

    @property
    def looks(self) -> tuple[int, int]:
        """Those that found a GPU busy, and all of them."""
        return self._slow, self._looks

    @property
    def disturbed(self) -> str | None:
        """Why times say nothing though nobody keeps a GPU busy: moments in which somebody did."""
        if self._slow <= max(_MOST_MOMENTS, _MOMENTS_SHARE * self._looks):
            return None
        return (
            f"a GPU worked for somebody else in {self._slow} of {self._looks} looks at it, while every "
            "process of ours stood still"
        )

    def _least_slowdown(self) -> float:
        """Of looks until one finds the GPUs alone, or the time is over in which what is honest ends."""
        deadline, least = time.monotonic() + _ENDS_S, self._use.slowdown()
        while least > SHARED and time.monotonic() < deadline:
            least = min(least, self._use.slowdown())
        return least
