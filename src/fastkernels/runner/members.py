"""What belongs to a worker's process group besides the worker itself, and whether it stands still (Linux).

The kernel tells the judge when a worker has stopped, with all of its threads. Of what the worker started it
tells nothing: a member in the middle of a long system call runs on, on the cores of whoever has its turn.
"""

from __future__ import annotations

import os
import time

_STILL = (b"T", b"t", b"Z", b"X", b"")  # stopped, traced, ended, gone


def others(leader: int) -> list[int]:
    """The members of the group that `leader` leads, without it. They cannot leave it (group.py)."""
    processes = (int(name) for name in _listed("/proc") if name.isdecimal())
    return [pid for pid in processes if pid != leader and _group(pid) == leader]


def stands_still(pid: int) -> bool:
    """Whether no thread of the process runs, nor will before it is continued; also if there is none."""
    folder = f"/proc/{pid}/task"
    return all(_fields(f"{folder}/{thread}/stat")[:1] in _STILL for thread in _listed(folder))


def cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process so far, by the kernel's clock of it; None where there is none."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return None


def _group(pid: int) -> int | None:
    """Asked of the kernel: its files below /proc take ten times as long, and there are hundreds of
    processes."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _fields(path: str) -> bytes:
    """State and so on: what stands behind the name, which may hold anything."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # it has ended
        return b""
    try:
        return os.read(descriptor, 512).rpartition(b")")[2].lstrip()
    except ProcessLookupError:
        return b""
    finally:
        os.close(descriptor)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
