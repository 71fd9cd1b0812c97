"""What of this machine each worker has: cores, threads of torch, memory."""

from __future__ import annotations

import os

from fastkernels.errors import MachineError


def last_cores(threads: int) -> list[int]:
    """The last of the judge's cores, one for each thread; none where all would be taken. Cores differ by
    their other work and by what it costs to wake them: three processes with the same call of 45 us claimed 44
    to 47 us on one core, and 33 to 84 us where the system placed each of them."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[-threads:] if threads < len(cores) else []


def default_threads() -> int:
    """Threads of every worker: `OMP_NUM_THREADS`, else all cores but one.

    The judge and the system keep a core: a barrier that waits for a busy core costs milliseconds, and
    workers are compared, so equal and steady is worth more than all.
    """
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdecimal() and int(chosen):
        return int(chosen)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


def memory_limit(device: str) -> int | None:
    """Bytes of address space for a candidate on the CPU: this machine's memory. CUDA reserves far more than
    it uses."""
    if device != "cpu" or not hasattr(os, "sysconf"):
        return None
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if total <= 0:
        raise MachineError("The amount of this machine's memory is unknown")
    return total
