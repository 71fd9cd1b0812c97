"""What the judge's own clocks say of a worker's call, whatever the worker says itself."""

from __future__ import annotations

from dataclasses import dataclass

from fastkernels.runner.members import cpu_ns, last_pid


@dataclass(frozen=True)
class Window:
    """Wall clock and CPU time of a process (None where the system does not say) between two moments, in ns.
    `made`: somebody, perhaps the process, made a process or a thread meanwhile."""

    ns: int
    cpu_ns: int | None
    made: bool


class Opened:
    """A window from now on, of process `pid`, which stands still or waits."""

    def __init__(self, pid: int) -> None:
        self._pid, self._made, self._cpu_ns = pid, last_pid(), cpu_ns(pid)

    def closed(self, begin_ns: int, still_ns: int) -> Window:
        """Now that it stands still; the clock ran between these (time.perf_counter_ns())."""
        before, after = self._cpu_ns, cpu_ns(self._pid)
        used = None if before is None or after is None else after - before
        return Window(still_ns - begin_ns, used, self._made is None or last_pid() != self._made)
