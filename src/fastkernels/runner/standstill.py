"""Whether a process that was stopped has left a GPU something to do.

SIGSTOP stops its threads, not the kernels and copies that it has enqueued. They would take turns with the
baseline's, or share its memory: beside a kernel of one thread an honest product of 2.4 ms took 4.9, and a
candidate with the baseline's code was 1.99 times as fast as the baseline (docs/measured.md).
"""

from __future__ import annotations

from fastkernels.errors import MachineError
from fastkernels.measure.sole import SoleUse
from fastkernels.runner.pool import Worker

SHARED = 1.05  # times as long as alone: twice beside kernels, 1.14 beside copies from the host
_IN_A_ROW = 3  # slow looks, for it to be more than a moment
_MOST_MOMENTS, _MOMENTS_SHARE = 1, 0.1  # a median does not move by so few


class Standstill:
    """Of one trial: looks at GPUs while nobody of ours has a turn."""

    def __init__(self, use: SoleUse) -> None:
        self._use, self._looks, self._slow = use, 0, 0

    def broken(self, worker: Worker) -> str | None:
        """How the process, which is stopped, keeps a GPU busy; None if it does not, or did for a moment
        alone. Whose work it is, shows once the process has ended. Raises MachineError where somebody else's
        goes on."""
        self._looks += 1
        if (before := self._use.slowdown()) <= SHARED:
            return None
        self._slow += 1
        if min(before, self._least()) <= SHARED:
            return None
        worker.close()
        if (after := self._least()) > SHARED:
            raise MachineError(
                f"a process that is not ours works on this GPU: reads of its memory take {after:.2f} times "
                "as long as they did. nvidia-smi says whose it is; run where nobody else does"
            )
        return (
            f"kept a GPU busy (reads of its memory took {before:.2f} times as long as alone, and {after:.2f} "
            "once the process had ended)"
        )

    @property
    def disturbed(self) -> str | None:
        """Why times say nothing though nobody keeps a GPU busy: moments in which somebody did."""
        if self._slow <= max(_MOST_MOMENTS, _MOMENTS_SHARE * self._looks):
            return None
        return (
            f"a GPU worked for somebody else in {self._slow} of {self._looks} looks at it, while every "
            "process of ours stood still"
        )

    def _least(self) -> float:
        """Of some looks."""
        return min(self._use.slowdown() for _ in range(_IN_A_ROW - 1))
