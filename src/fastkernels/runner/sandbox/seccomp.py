"""A filter on system calls that keeps a worker and everything it starts in one process group, on its cores,
and from leaving anything behind.

The judge stops and ends a worker by its group (worker/pool.py). A descendant that left it would run on while
the baseline is timed, and after the run; a stopped process with a timer could continue itself. A thread or a
process on another core would work beside a call of which both sides have the same cores. What outlives a
process in the kernel's own tables would bring one run's answers to the next.

    setsid, setpgid               do nothing and report success: build tools call them as a habit
    sched_setaffinity             the same: the cores are those that the worker took before
    timer_create, mq_notify,      are refused: they send any signal, SIGCONT among them
    F_SETSIG, PR_SET_PDEATHSIG
    clone                         is refused with another signal at the child's end than SIGCHLD, with this
                                  process's parent, and with namespaces of its own
    clone3, io_uring_setup        do not exist: their arguments lie in memory, where no filter sees them
    unshare, setns                are refused: a process is root in a user namespace of its own
    shmget, shmat, semget,        are refused: such memory and messages live until the machine ends
    msgget, mq_open

The filter is inherited by every child, survives exec and cannot be taken off. It needs no privileges.
"""

from __future__ import annotations

import ctypes
import platform
import signal
import struct

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 1, 22, 38, 2
_EPERM, _ENOSYS, _F_SETSIG = 1, 38, 10
# Of struct seccomp_data: the call's number, the machine's, and the low halves of the first two arguments.
_NUMBER, _MACHINE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24
_LOAD, _AND, _EQUAL, _ANY_OF, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_OTHER_NUMBERS = 0x40000000  # x86-64's second table of calls
_CLONE_PARENT, _CLONE_NEW = 0x8000, 0x7E020000  # every kind of namespace that `clone` makes
_END_SIGNAL = 0xFF

_IGNORED = ("setpgid", "setsid", "sched_setaffinity")
_REFUSED = ("timer_create", "mq_notify", "mq_open", "unshare", "setns", "shmget", "shmat", "semget", "msgget")
_ABSENT = ("clone3", "io_uring_setup")
# The kernel's numbers of these calls and of those that are looked at more closely: x86-64's and arm64's.
_NUMBERS = {
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "sched_setaffinity": (203, 122),
    "timer_create": (222, 107),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "unshare": (272, 97),
    "setns": (308, 268),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "fcntl": (72, 25),
    "prctl": (157, 167),
    "clone": (56, 220),
}
# machine: its name for the filter, and its numbers of the calls
_MACHINES = {
    "x86_64": (0xC000003E, {name: x86 for name, (x86, _) in _NUMBERS.items()}),
    "aarch64": (0xC00000B7, {name: arm for name, (_, arm) in _NUMBERS.items()}),
}


def keep() -> bool:
    """Put the filter on the calling, single-threaded process. False where the system has none."""
    if platform.machine() not in _MACHINES:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    machine, numbers = _MACHINES[platform.machine()]
    program = _program(machine, numbers)
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, and where they are
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    return libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0) == 0


def _program(machine: int, numbers: dict[str, int]) -> bytes:
    """Instructions of the kernel's packet filter: (operation, steps if true, steps if false, value)."""
    nothing, refuse, absent = ((_RETURN, 0, 0, _FAIL | error) for error in (0, _EPERM, _ENOSYS))
    steps = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, machine), refuse, (_LOAD, 0, 0, _NUMBER)]
    steps += [(_AT_LEAST, 0, 1, _OTHER_NUMBERS), refuse]
    for names, answer in ((_IGNORED, nothing), (_REFUSED, refuse), (_ABSENT, absent)):
        for name in names:
            steps += [(_EQUAL, 0, 1, numbers[name]), answer]
    by_argument = {
        "fcntl": [(_LOAD, 0, 0, _ARGUMENT_1), (_EQUAL, 0, 1, _F_SETSIG), refuse],
        "prctl": [
            (_LOAD, 0, 0, _ARGUMENT_0),
            (_EQUAL, 0, 3, _PR_SET_PDEATHSIG),
            (_LOAD, 0, 0, _ARGUMENT_1),
            (_EQUAL, 0, 1, signal.SIGCONT),
            refuse,
        ],
        "clone": [
            (_LOAD, 0, 0, _ARGUMENT_0),
            (_ANY_OF, 0, 1, _CLONE_PARENT | _CLONE_NEW),
            refuse,
            (_AND, 0, 0, _END_SIGNAL),
            (_EQUAL, 2, 0, 0),  # a thread has none
            (_EQUAL, 1, 0, signal.SIGCHLD),
            refuse,
        ],
    }
    allow = (_RETURN, 0, 0, _ALLOW)
    for name, looks in by_argument.items():
        steps += [(_EQUAL, 0, len(looks) + 1, numbers[name]), *looks, allow]
    steps += [allow]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
