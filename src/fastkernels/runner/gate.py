"""The two places between which the judge's clock runs on a CPU, inside a worker that is alone.

    judge                                          worker
    asks for `go`                      ──▶         does all that a call needs but its arguments
    waits at the gate                  ◀──         gate.wait()
    stops it, brings the arguments
    lets it in, continues it: clock    ──▶         the call
    waits at the gate                  ◀──         gate.leave(where the results lie)
    stops it: clock, takes the results
    lets it out, waits for an answer   ◀──         answers

A request and its answer are Python's work on both sides, 0.3 ms in all. Who answered by himself could compute
for as long as the baseline spends on them, if they lay between. What lies there is a few lines, since after a
call that fills the caches each costs microseconds; and nothing is done before the stop, so that the process's
CPU time shows who does something then.
"""

from __future__ import annotations

import contextlib
import socket
from array import array
from collections.abc import Sequence

_HERE = _GO = b"1"
_MOST_BYTES = 1 << 16
Reaches = list[tuple[int, int]]  # (address, bytes) of each result; (0, 0) of what is no plain tensor there


def pair() -> tuple[socket.socket, socket.socket]:
    """The judge's end and a worker's. Each message comes whole."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


# The judge's end: whoever has closed the worker's says nothing, and cannot be let in.


def said(channel: socket.socket) -> bytes:
    """What a worker has said; nothing if it has not."""
    with contextlib.suppress(OSError):
        return channel.recv(_MOST_BYTES, socket.MSG_DONTWAIT)
    return b""


def let_through(channel: socket.socket) -> None:
    """In or out, once it is continued. Whatever it has said before is forgotten."""
    while said(channel):
        pass
    with contextlib.suppress(OSError):
        channel.send(_GO)


def left(message: bytes) -> Reaches:
    """What `Gate.leave` said. ValueError where it cannot have."""
    numbers = array("Q", message)
    if len(numbers) % 2:
        raise ValueError(f"an odd number of numbers: {len(numbers)}")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


class Gate:
    """A worker's end."""

    def __init__(self, descriptor: int) -> None:
        channel = socket.socket(fileno=descriptor)
        self._send, self._receive, self.close = channel.send, channel.recv, channel.close

    def wait(self) -> None:
        """Returns when the arguments are there."""
        self._send(_HERE)
        self._receive(1)

    def leave(self, reaches: Sequence[int]) -> None:
        """Say where the results lie: address and bytes of each (results.reaches). Returns when the judge has
        taken them."""
        self._send(array("Q", reaches))
        self._receive(1)

    def show(self, where: bytes) -> None:
        """The same of a device (mapped.Shown, as JSON)."""
        self._send(where)
        self._receive(1)
