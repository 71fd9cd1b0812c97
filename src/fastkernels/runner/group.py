"""A filter on system calls that keeps a worker and everything it starts in one process group, and on its
cores.

The judge stops and ends a worker by its group (pool.py). A descendant that left it would run on while the
baseline is timed, and after the run; a stopped process with a timer could continue itself. A thread or a
process on another core would work beside a call of which both sides have the same cores.

    setsid, setpgid                       do nothing and report success: build tools call them as a habit
    sched_setaffinity                     the same: the cores are those that the worker took before
    timer_create, mq_notify, F_SETSIG     are refused: they send any signal, SIGCONT among them

The filter is inherited by every child, survives exec and cannot be taken off. It needs no privileges.
"""

from __future__ import annotations

import ctypes
import platform
import struct

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_EPERM, _F_SETSIG = 1, 10
# Of struct seccomp_data: the call's number, the machine's, and the low half of the second argument.
_NUMBER, _MACHINE, _ARGUMENT_1 = 0, 4, 24
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_OTHER_NUMBERS = 0x40000000  # x86-64's second table of calls

_IGNORED, _REFUSED = ("setpgid", "setsid", "sched_setaffinity"), ("timer_create", "mq_notify")
_CALLS = (*_IGNORED, *_REFUSED, "fcntl")
# machine: its name for the filter, and its numbers of the calls
_MACHINES = {
    "x86_64": (0xC000003E, dict(zip(_CALLS, (109, 112, 203, 222, 244, 72)))),
    "aarch64": (0xC00000B7, dict(zip(_CALLS, (154, 157, 122, 107, 184, 25)))),
}


def keep() -> bool:
    """Put the filter on the calling, single-threaded process. False where the system has none."""
    if platform.machine() not in _MACHINES:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    program = _program(*_MACHINES[platform.machine()])
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, and where they are
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    return libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0) == 0


def _program(machine: int, numbers: dict[str, int]) -> bytes:
    """Instructions of the kernel's packet filter: (operation, steps if true, steps if false, value)."""
    nothing, refuse = (_RETURN, 0, 0, _FAIL), (_RETURN, 0, 0, _FAIL | _EPERM)
    steps = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, machine), refuse, (_LOAD, 0, 0, _NUMBER)]
    steps += [(_AT_LEAST, 0, 1, _OTHER_NUMBERS), refuse]
    for name in _IGNORED:
        steps += [(_EQUAL, 0, 1, numbers[name]), nothing]
    for name in _REFUSED:
        steps += [(_EQUAL, 0, 1, numbers[name]), refuse]
    steps += [(_EQUAL, 0, 3, numbers["fcntl"]), (_LOAD, 0, 0, _ARGUMENT_1), (_EQUAL, 0, 1, _F_SETSIG), refuse]
    steps += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
