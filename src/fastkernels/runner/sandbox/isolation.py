"""What separates a worker from the user, from the judge and from other workers.

    processes     its own process, session and process group (worker/process.py), forked from one that has
                  imported libraries and our own code only, and that nobody may read or write
                  (worker/template.py)
    environment   an allow-list of variables: no tokens, no seeds; and the allocator's settings (allocator.py)
    home          fresh HOME, TMPDIR and caches, in a folder that goes with the process
    limits        no core dumps, bounded file size; bounded memory on the CPU
    group         what a worker starts stays in its process group, so pauses and ends reach it, and leaves
                  nothing in the kernel's tables (seccomp.py)
    signals       what it sends reaches nobody else, the judge least of all (landlock.py)
    namespace     its own user namespace: no privileges over the judge, even for root
    user          where root gets no namespaces: a user of its own (user.py)
    network       its own network namespace, in which there is nothing but its own loopback
    files         read-only but for its own folder and its own /dev/shm (readonly.py)
    memory        the judge's memory cannot be read through /proc while it judges, nor the baseline's

The first four always hold; the others where the kernel allows. `Environment.isolation` says what was reached.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fastkernels.runner.sandbox import allocator, flashinfer_builds, readonly

ALWAYS = ("processes", "environment", "home", "limits")

_ALLOWED = frozenset(
    {
        "PATH",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "LANG",
        "TZ",
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "CC",
        "CXX",
        "NVCC_PREPEND_FLAGS",
    }
)
_ALLOWED_PREFIXES = (
    "LC_",
    "CUDA_",
    "NVIDIA_",
    "TORCH_",
    "PYTORCH_",
    "TRITON_",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "NCCL_",
)

# Variables of `Scratch.environment` that differ from worker to worker. What a template imports may not keep
# what they say, unless its workers forget it (worker/template.py).
OWN_FOLDERS = frozenset(
    {
        "HOME",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "TRITON_HOME",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "FLASHINFER_WORKSPACE_BASE",
    }
)

_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWNS = 0x10000000, 0x40000000, 0x00020000
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 3, 4
_GET_FLAGS, _SET_FLAGS, _IS_UP = 0x8913, 0x8914, 0x1  # of a network interface, for ioctl
_OUTPUT = "output.txt"
MAX_FILE_BYTES = 8 << 30  # a compiler cache fits; a runaway log does not fill the disk


@dataclass(frozen=True)
class Scratch:
    """A folder for one process; `shared` holds compiler caches that several (baseline) processes share."""

    root: Path
    shared: Path | None
    # Read from here: the process may put a link in the file's place, and we would open what it may not.
    _printed: IO[bytes]

    @classmethod
    def create(cls, shared: Path | None = None) -> Scratch:
        root = Path(tempfile.mkdtemp(prefix="fk-worker-"))
        for name in ("home", "tmp", "cache", "work"):
            (root / name).mkdir()
        return cls(root, shared, (root / _OUTPUT).open("xb+", buffering=0))

    @property
    def output(self) -> Path:
        """What the process prints, for whoever starts it."""
        return self.root / _OUTPUT

    def printed(self, last: int = 4000) -> str:
        """The end of what the process printed; nothing any more once the folder is removed."""
        if self._printed.closed:
            return ""
        self._printed.seek(max(0, os.fstat(self._printed.fileno()).st_size - last))
        return self._printed.read(last).decode(errors="replace")

    def remove(self) -> None:
        """Delete the folder. May be called twice."""
        self._printed.close()
        # What the system does not let go of stays in the temp folder, and what lies too deep for Python.
        with contextlib.suppress(RecursionError):
            shutil.rmtree(self.root, ignore_errors=True)

    def environment(self, threads: int, outer: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The worker's whole environment."""
        kept = {k: v for k, v in outer.items() if k in _ALLOWED or k.startswith(_ALLOWED_PREFIXES)}
        caches = self.shared or self.root / "cache"
        return {
            **kept,
            **_caches_of_the_user(outer, trusted=self.shared is not None),
            "LOGNAME": "worker",  # libraries ask for the name of a user that may have none
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "TRITON_HOME": str(self.root / "home"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TORCH_EXTENSIONS_DIR": str(caches / "extensions"),
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            **allocator.ENVIRONMENT,
            "PYTHONSAFEPATH": "1",
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }


def _caches_of_the_user(outer: Mapping[str, str], trusted: bool) -> dict[str, str]:
    """Downloaded models for everybody (offline: the judge fetches); FlashInfer's builds for our own code."""
    home = Path(outer.get("HOME") or Path.home())
    hub = outer.get("HF_HUB_CACHE") or Path(outer.get("HF_HOME") or home / ".cache" / "huggingface") / "hub"
    found = {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}
    return {**found, "FLASHINFER_WORKSPACE_BASE": str(flashinfer_builds.home(outer))} if trusted else found


def common(before: Sequence[str] | None, reached: Sequence[str]) -> tuple[str, ...]:
    """Levels that all processes so far have reached; `before`: of the others, None where there are none."""
    return tuple(reached) if before is None else tuple(level for level in before if level in reached)


# ---------------------------------------------------------------- inside a worker, before its side


@dataclass(frozen=True)
class Reached:
    """`isolation`: levels beyond ALWAYS. `stays_root`: why it has no user of its own, if it should have."""

    isolation: tuple[str, ...] = ()
    stays_root: str = ""


def enter(
    namespaces: bool,
    memory_bytes: int | None,
    hidden: bool,
    folder: Path,
    number: int = 0,
    reads: Sequence[Path] = (),
) -> Reached:
    """Separate the calling process. Needs a single-threaded one. `hidden`: no candidate may read its memory,
    where the answers to the same inputs are. `folder`: the only one that it may write to, where there are
    namespaces. `number`: the user that it becomes where there are none (0: none); `reads` as in user.py."""
    import resource

    from fastkernels.runner.sandbox import landlock, seccomp, user

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    if memory_bytes:
        _lower(resource.RLIMIT_AS, memory_bytes)
    if not sys.platform.startswith("linux"):
        return Reached()
    before = os.getuid(), os.getgid()
    separated = namespaces and unshare()
    stays_root = user.become(number, folder, reads) if number and not separated else ""
    # Another user begins with memory that is hidden and with no order to end: so both come after it.
    ctypes.CDLL(None).prctl(
        _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0
    )  # no worker outlives its judge, not even a stopped one
    hide(hidden)
    levels = ["group"] if seccomp.keep() else []
    if landlock.confine():
        levels.append("signals")
    if separated:
        levels += ["namespace", "network"]
        # Where this fails names of users are unknown; the kernel's permissions, which count, are as before.
        with contextlib.suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
            for name, same in zip(("uid_map", "gid_map"), before):
                Path(f"/proc/self/{name}").write_text(f"{same} {same} 1")
        if readonly.all_but(folder):
            levels.append("files")
    elif number and not stays_root:
        levels.append("user")
    return Reached(tuple(levels), stays_root)


def unshare() -> bool:
    """User, network and mount namespaces for the calling process, and a loopback in them; False where the
    kernel refuses."""
    if ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWNS) != 0:
        return False
    with contextlib.suppress(OSError):  # as separated as it would be with it
        _raise_loopback()
    return True


def _raise_loopback() -> None:
    """Ranks of a group meet there. A new namespace has it, and it is down."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        interface = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _GET_FLAGS, interface))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _IS_UP))


def hide(hidden: bool) -> None:
    """Whether others of the same user may read and write the calling process's memory; a fork inherits it."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, int(not hidden), 0, 0, 0)


def _lower(what: int, limit: int) -> None:
    import resource

    _, hard = resource.getrlimit(what)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(what, (limit, limit))


# ---------------------------------------------------------------- inside the judge


class HiddenMemory(contextlib.AbstractContextManager["HiddenMemory"]):
    """In the body no process without privileges over this one may read its memory (/proc/PID/mem, ptrace).

    `reveal()` ends it early: for a driver that shares device memory in a way that needs such access.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
        self._before = 0
        self.hidden = False

    def __enter__(self) -> HiddenMemory:
        if self._libc is not None:
            self._before = self._libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
            self.hidden = self._libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
        return self

    def __exit__(self, *_: object) -> None:
        self.reveal()

    def reveal(self) -> None:
        if self._libc is not None and self.hidden:
            self._libc.prctl(_PR_SET_DUMPABLE, self._before, 0, 0, 0)
            self.hidden = False
