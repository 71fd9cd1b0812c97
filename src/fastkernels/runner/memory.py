"""A worker's memory, as the judge reads and writes it while the process stands still (Linux).

    worker    open_own(), before its walls are up    lend(descriptor), before it builds its side
    judge     memory = borrowed(channel)             memory.write(address, x), memory.read(address, x)

The descriptors are of /proc/self/mem and /proc/self/maps, which the process opened itself. The kernel asks
who may do so when they are opened, not when they are used: so no privileges are needed, and nobody else gets
one of a hidden process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

_LENT = b"m"
_own: tuple[int, ...] = ()


class NoMemory(Exception):
    """There is nothing at an address that the worker told."""


class Memory:
    """The judge's end. Tensors are uint8, one-dimensional, contiguous, on the CPU."""

    def __init__(self, descriptor: int, maps: int) -> None:
        self._descriptor, self._maps = descriptor, maps

    def read(self, address: int, target: Tensor) -> None:
        self._each(os.preadv, address, target)

    def write(self, address: int, source: Tensor) -> None:
        self._each(os.pwritev, address, source)

    def shared(self, places: Iterable[tuple[int, int]]) -> bool:
        """Whether any of these (address, bytes) reaches memory that may be mapped at a second place: what
        lies there is stored elsewhere without being copied (`mapped_pages`)."""
        reaches = [(address, address + count) for address, count in places if count]
        os.lseek(self._maps, 0, os.SEEK_SET)
        with open(self._maps, "rb", closefd=False) as lines:
            shared = [line.split(b" ", 1)[0] for line in lines if line.split(b" ", 2)[1][3:4] != b"p"]
        spans = [tuple(int(end, 16) for end in span.split(b"-")) for span in shared]
        return any(begin < high and low < end for low, high in spans for begin, end in reaches)

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._maps)

    def _each(self, moved: Callable[..., int], address: int, x: Tensor) -> None:
        """The kernel moves 2 GiB at a time at most, and stops before a page that is not there."""
        whole, done = x.numpy().data, 0
        while done < len(whole):
            try:
                count = moved(self._descriptor, [whole[done:]], address + done)
            except (OSError, OverflowError) as error:
                raise NoMemory(f"{len(whole)} bytes at {address:#x}: {error}") from error
            if not count:
                raise NoMemory(f"{len(whole)} bytes at {address:#x}: the process has ended")
            done += count


def as_bytes(x: Tensor) -> Tensor:
    """A contiguous tensor's memory."""
    return x.view(-1).view(torch.uint8)


def borrowed(channel: socket.socket) -> Memory:
    """What a worker has lent over the other end."""
    _, descriptors, _, _ = socket.recv_fds(channel, len(_LENT), 2, socket.MSG_CMSG_CLOEXEC)
    return Memory(*descriptors)


# ---------------------------------------------------------------- inside a worker


def open_own() -> None:
    """Open the calling process's memory. It must not be hidden, nor behind walls: there nothing can be opened
    to be written."""
    global _own
    with contextlib.suppress(OSError):  # a system that gives it to nobody
        _own = os.open("/proc/self/mem", os.O_RDWR), os.open("/proc/self/maps", os.O_RDONLY)


def lend(descriptor: int) -> bool:
    """Send what was opened, once; False if nothing was."""
    global _own
    with socket.socket(fileno=descriptor) as channel:
        if not _own:
            return False
        socket.send_fds(channel, [_LENT], list(_own))
        for own in _own:
            os.close(own)
        _own = ()
        return True
