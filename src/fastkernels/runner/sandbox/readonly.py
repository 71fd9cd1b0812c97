"""Everything but a worker's own folder becomes read-only for it, and it cannot change that.

In a user and mount namespace of its own a process may change the flags of mounts, and with them nobody
else's. Its capabilities there go at once, so that it cannot change them back; a namespace that it makes later
gets the mounts with their flags locked.

Its /dev/shm is a new one, in memory, that ends with its namespace: locks of `multiprocessing`, which
torch.compile's own processes need, are files there, and NCCL's memory is.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_DEV_SHM = Path("/dev/shm")
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_CAPBSET_DROP, _CAPABILITIES_VERSION_3 = 24, 0x20080522
_MOST_CAPABILITIES = 64


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def all_but(folder: Path) -> bool:
    """Of the calling process, which has just entered user and mount namespaces of its own. False where the
    kernel does not do this (before Linux 5.12); its privileges are gone all the same."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = (
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        and libc.mount(bytes(folder), bytes(folder), None, _MS_BIND, None) == 0
        and _set(libc, Path("/"), _AT_RECURSIVE, _MountAttributes(attr_set=_MOUNT_ATTR_RDONLY))
        and _set(libc, folder, 0, _MountAttributes(attr_clr=_MOUNT_ATTR_RDONLY))
        and (not _DEV_SHM.is_dir() or libc.mount(b"shm", bytes(_DEV_SHM), b"tmpfs", 0, b"mode=1777") == 0)
    )
    _drop_capabilities(libc)
    os.chdir(Path.cwd())  # by its path, to where it may be written; the process came here before the mounts
    return done


def _set(libc: ctypes.CDLL, path: Path, flags: int, attributes: _MountAttributes) -> bool:
    size = ctypes.sizeof(attributes)
    return (
        libc.syscall(
            _SYS_MOUNT_SETATTR, _AT_FDCWD, bytes(path), flags, ctypes.byref(attributes), ctypes.c_size_t(size)
        )
        == 0
    )


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    for capability in range(_MOST_CAPABILITIES):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # numbers that the kernel does not know fail
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    libc.capset(header, nothing)
