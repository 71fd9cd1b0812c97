"""The place at which a worker waits while the judge holds its device (gpu_hold.py), and is stopped there.

judge                                          worker
asks for `go`                      ──▶         enqueues its call
waits at the gate                  ◀──         gate.wait(), or gate.show(where the results lie)
stops it; the device works
lets it through                    ──▶         answers
"""

from __future__ import annotations

import contextlib
import socket

_HERE = _GO = b"1"
_MOST_BYTES = 1 << 16


def pair() -> tuple[socket.socket, socket.socket]:
    """The judge's end and a worker's. Each message comes whole."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


# The judge's end: whoever has closed the worker's says nothing, and cannot be let through.


def said(channel: socket.socket) -> bytes:
    """What a worker has said; nothing if it has not."""
    with contextlib.suppress(OSError):
        return channel.recv(_MOST_BYTES, socket.MSG_DONTWAIT)
    return b""


def let_through(channel: socket.socket) -> None:
    """Once it is continued. Whatever it has said before is forgotten."""
    while said(channel):
        pass
    with contextlib.suppress(OSError):
        channel.send(_GO)


class Gate:
    """A worker's end."""

    def __init__(self, descriptor: int) -> None:
        channel = socket.socket(fileno=descriptor)
        self._send, self._receive, self.close = channel.send, channel.recv, channel.close

    def wait(self) -> None:
        """Returns when the judge has taken the results."""
        self._send(_HERE)
        self._receive(1)

    def show(self, where: bytes) -> None:
        """The same, and say where they lie (gpu_arguments.Shown, as JSON)."""
        self._send(where)
        self._receive(1)
