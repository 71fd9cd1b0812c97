"""A process as its parent, the judge, sees it: watched, stopped, continued, and ended with its group.

Every process here leads a session and a process group of its own. It is started by `executed`, as a new
program, or forked from one that is (template.py). The kernel tells the judge when a process has stopped, with
all of its threads. Of what it started the kernel tells nothing: a member of its group in the middle of a long
system call runs on, on the cores of whoever has its turn (`others`, `stands_still`; Linux).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from fastkernels.errors import MachineError

_END_TIMEOUT_S = 10.0  # after SIGKILL only the kernel stands between us and the exit status
_END_LOOK_S = 0.5e-3


class Standing(NamedTuple):
    """How the system schedules a process."""

    cores: frozenset[int]
    nice: int
    policy: int


def standing(pid: int) -> Standing | None:
    """Of a process, or of the calling thread (0), which what it starts inherits (Linux; None elsewhere)."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = frozenset(os.sched_getaffinity(pid))
    return Standing(cores, os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid))


class Process:
    """A child of the judge that nobody else waits for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None  # once it was ended: its exit status, or a signal's number, negative
        self.watch = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None  # readable once it exits

    def exited(self) -> bool:
        """Without collecting it."""
        if self.status is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def changed(self, to: int) -> bool:
        """Whether it was stopped or continued (`to`: os.WSTOPPED, os.WCONTINUED) since this was last
        asked."""
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, to | os.WNOHANG) is not None
        return False

    def send(self, number: signal.Signals) -> None:
        """To its whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def standing(self) -> Standing | None:
        """What another process of the same user could change about it."""
        return standing(self.pid)

    def end(self) -> None:
        """Kill the group, and collect all of it that are children of ours: also what a worker left behind
        may have become one (template.py). May be called twice."""
        if self.status is not None:
            return
        # The leader is not collected yet, so its number cannot name anybody else's group.
        self.send(signal.SIGKILL)
        deadline = time.monotonic() + _END_TIMEOUT_S
        with contextlib.suppress(ChildProcessError):  # none of them is left
            while True:
                pid, status = os.waitpid(-self.pid, os.WNOHANG)
                if pid == self.pid:
                    self.status = os.waitstatus_to_exitcode(status)
                elif pid == 0:
                    if time.monotonic() > deadline:
                        raise MachineError(f"Process {self.pid} did not end within {_END_TIMEOUT_S:.0f} s")
                    time.sleep(_END_LOOK_S)
        if self.watch is not None:
            os.close(self.watch)
            self.watch = None


def executed(
    module: str,
    arguments: Sequence[str],
    channel: int,
    output: IO[bytes],
    environment: dict[str, str],
) -> Process:
    """Start `python -m module CHANNEL ARGUMENT...`, with no other descriptor of ours than the channel's."""
    started = subprocess.Popen(
        [sys.executable, "-m", module, str(channel), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[channel],
        cwd="/",
        env=environment,
        start_new_session=True,
    )
    started.returncode = 0  # it is Process that waits for it, so Popen must not
    return Process(started.pid)


def importing_from(source: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`, in which fastkernels is that of the folder `source`, and all else where it was."""
    if source is None:
        return dict(environment)
    before = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": os.pathsep.join([str(source), *([before] if before else [])])}


_STILL = (b"T", b"t", b"Z", b"X", b"")  # stopped, traced, ended, gone


def others(leader: int) -> list[int]:
    """The members of the group that `leader` leads, without it. They cannot leave it (seccomp.py)."""
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
