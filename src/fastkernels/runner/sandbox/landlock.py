"""Signals of a worker, and of what it starts, reach nobody else: the judge of the same user could be ended.

This is Landlock's scope for signals (Linux 6.12). It needs no privileges, but a process that can gain none
(seccomp.py sees to that), is inherited, and cannot be taken off.
"""

from __future__ import annotations

import ctypes
import os

_SYS_CREATE_RULESET, _SYS_RESTRICT_SELF = 444, 446  # on every machine
_CREATE_RULESET_VERSION, _SCOPED_SIGNALS = 1, 2
_FIRST_WITH_SCOPES = 6


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("access_fs", "access_net", "scoped")]


def confine() -> bool:
    """Of the calling process. False where the kernel does not do this."""
    libc = ctypes.CDLL(None, use_errno=True)
    nothing = ctypes.c_size_t(0)
    version = libc.syscall(_SYS_CREATE_RULESET, None, nothing, _CREATE_RULESET_VERSION)
    if version < _FIRST_WITH_SCOPES:
        return False
    ruleset = _Ruleset(scoped=_SCOPED_SIGNALS)
    size = ctypes.c_size_t(ctypes.sizeof(ruleset))
    descriptor = libc.syscall(_SYS_CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    if descriptor < 0:
        return False
    done = libc.syscall(_SYS_RESTRICT_SELF, descriptor, 0) == 0
    os.close(descriptor)
    return done
