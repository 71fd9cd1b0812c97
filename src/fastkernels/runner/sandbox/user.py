"""A user of its own for a worker, where the harness runs as root and the kernel gives no namespaces.

Such a process may write to its own folder and to what everybody may write to: not to this package, the
baseline's caches or other workers' folders. It may neither signal nor look into processes of other users;
root, the judge, may still stop and end it.

    judge     unused()        a number that nobody has, of processes, accounts and earlier workers
    worker    become(...)     takes it, or says why it stays root

What the worker needs must stay readable: the interpreter, the libraries, the candidate, the devices. Where
folders that only root may read are in the way (/root has mode 0700), it keeps one privilege, to read
everything, which in a namespace of its own it has as well. A child tries all of that before.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import itertools
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastkernels import layout
from fastkernels.loader.files import below

# systemd keeps these for services whose user exists while they run, so no account has one.
NUMBERS = range(61184, 65520)
_DEVICES = "/dev/nvidia*"
_PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _AMBIENT_RAISE = 8, 24, 38, 47, 2
_READ_EVERYTHING, _CAPABILITIES_VERSION_3, _MOST_CAPABILITIES = 2, 0x20080522, 64
_REASON_BYTES = 2000

_next = itertools.count(random.SystemRandom().randrange(len(NUMBERS)))


def unused() -> int:
    """Inside the judge. 0 where it is not root, or this system is no Linux: no worker can change its user."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return 0
    import grp
    import pwd

    taken = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    taken |= set(_of_processes())
    for place in itertools.islice(_next, len(NUMBERS)):
        number = NUMBERS[place % len(NUMBERS)]
        if number not in taken:
            return number
    return 0


def _of_processes() -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            yield folder.stat().st_uid


# ---------------------------------------------------------------- inside a worker, single-threaded


def become(number: int, folder: Path, reads: Sequence[Path]) -> str:
    """Be the user `number`, to whom `folder` then belongs. "" or, where everything stays as it was, why.
    `reads`: what this worker will read besides what is imported already, folders as a whole."""
    try:
        needed = _needed(folder, reads)
        _give(folder, number)
        for reading in (False, True):
            problem = _tried(number, reading, needed)
            if not problem:
                _drop(number, reading)
                return ""
        _give(folder, 0)
    except OSError as error:
        problem = str(error)
    return problem


def _give(folder: Path, number: int) -> None:
    for place, _, files in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in files)):
            os.chown(path, number, number, follow_symlinks=False)


def _needed(folder: Path, reads: Sequence[Path]) -> list[tuple[str, int]]:
    """Paths that exist, and how they must be open to the worker. Asked by root: what lies in a folder that
    others may not enter does not exist for them."""
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = {file for file in modules if isinstance(file, str) and os.path.exists(file)}
    ours = (Path(__file__).parents[2], layout.data_dir("registry"), layout.data_dir("baseline"))
    read = itertools.chain(filter(os.path.isdir, sys.path), files, *map(_all_below, (*ours, *reads)))
    devices = (path for path in glob.glob(_DEVICES) if os.access(path, os.R_OK | os.W_OK))
    return [
        (str(folder), os.R_OK | os.W_OK | os.X_OK),
        (sys.executable, os.R_OK | os.X_OK),
        *((path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)) for path in read),
        *((path, os.R_OK | os.W_OK) for path in devices if not os.path.isdir(path)),
    ]


def _all_below(path: Path) -> Iterator[str]:
    yield str(path)
    yield from (str(place) for place in below(path) if "__pycache__" not in place.parts)  # written to


def _tried(number: int, reading: bool, needed: Sequence[tuple[str, int]]) -> str:
    """What a process of that user lacks; a child is one and looks."""
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _drop(number, reading)
            closed = (path for path, how in needed if not os.access(path, how, effective_ids=True))
            reason = "".join(f"{path} is closed to it" for path in itertools.islice(closed, 1))
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
        os.write(ours, reason.encode(errors="replace")[:_REASON_BYTES])
        os._exit(0)
    os.close(ours)
    with os.fdopen(theirs, "rb") as pipe:
        reason = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return reason or (f"a process of user {number} ended with status {status}" if status else "")


def _drop(number: int, reading: bool) -> None:
    """For good: without privileges but, if wanted, the one to read everything, also for what it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if reading:
        for capability in set(range(_MOST_CAPABILITIES)) - {_READ_EVERYTHING}:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # numbers that the kernel does not know fail
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    if reading:
        header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
        kept = 1 << _READ_EVERYTHING  # effective, permitted, inheritable; then the same of numbers from 32 on
        if libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept, kept, 0, 0, 0)) != 0:
            raise OSError(ctypes.get_errno(), "the privilege to read everything cannot be kept")
        libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, _READ_EVERYTHING, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # what it starts gets no privileges from a file either
