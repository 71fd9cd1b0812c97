"""Messages between the judge and its workers, over a private socket pair that the worker inherits.

    judge -> worker    a frame with a pickled `Request`, file descriptors beside it (shared memory)
    worker -> judge    a frame with a JSON `Reply`; nothing that a candidate's process wrote is ever unpickled

    frame = magic (4 bytes) · length (uint64, big endian) · body

Every request carries a fresh random id that its reply must repeat, so a reply cannot be written ahead of
its request. A frame that does not parse is a `BrokenReply`: the judge treats the worker as crashed.
"""

from __future__ import annotations

import pickle
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, ValidationError

from fastkernels.records import Record

_MAGIC = b"FKv1"
_HEADER = struct.Struct("!4sQ")
# A frame of small lists is many times as large in memory, and takes seconds to read: a side whose answers are
# short has a limit of its own.
MAX_REPLY_BYTES = 1 << 28
MAX_DESCRIPTORS = 16
INPUTS_ARE_THERE, INPUTS_ARE_TAKEN = b"1", b"2"  # to a rank that is late, and from it


class BrokenReply(Exception):
    """The worker's channel closed, or carries something that is no valid reply."""


class ReplyTimeout(Exception):
    """No complete reply before the deadline."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a worker's method. `descriptors` says how many file descriptors travel with the frame."""

    do: str
    arguments: dict[str, Any]
    descriptors: int = 0
    id: int = field(default_factory=lambda: secrets.randbits(52))  # 52 bits survive every JSON reader


class ErrorReport(Record):
    """An exception inside a worker. `kind` is the class name; file and line lie in the candidate where it was
    one. `traceback`: from the candidate's first frame on; `trace`: with the harness's frames before it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: str
    message: str
    traceback: str = ""
    trace: str = ""
    file: str | None = None
    line: int | None = None


class Reported(Exception):
    """An error whose report is there already: another process made it."""

    def __init__(self, report: ErrorReport) -> None:
        self.report = report
        super().__init__(report.message)


class Reply(Record):
    # What a model computes may be NaN or infinite, and must not arrive as null.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")

    id: int
    value: dict[str, Any] | None = None
    error: ErrorReport | None = None


def send_request(channel: socket.socket, request: Request, descriptors: Sequence[int] = ()) -> None:
    """Judge's side. OSError where the worker is gone."""
    frame = _frame(pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL))
    sent = socket.send_fds(channel, [frame], list(descriptors)) if descriptors else 0
    channel.sendall(frame[sent:])


def receive_request(channel: socket.socket) -> tuple[Request, list[int]]:
    """Worker's side. EOFError once the judge is gone."""
    data, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, MAX_DESCRIPTORS)
    if not data:
        raise EOFError("the judge closed the channel")
    header = data + _exactly(channel, _HEADER.size - len(data), _blocking)
    request = pickle.loads(_exactly(channel, _length(header), _blocking))
    assert len(descriptors) == request.descriptors, "file descriptors were lost on the way"
    return request, descriptors


def send_reply(channel: socket.socket, reply: Reply) -> None:
    """Worker's side."""
    channel.sendall(_frame(reply.model_dump_json().encode()))


def receive_reply(
    channel: socket.socket,
    request_id: int,
    deadline: float,
    died: Callable[[], bool],
    watch: int | None = None,
    most_bytes: int = MAX_REPLY_BYTES,
) -> Reply:
    """Judge's side: the reply to `request_id`. ReplyTimeout after `deadline` (time.monotonic), BrokenReply
    otherwise.

    `watch` is a descriptor that becomes readable when the worker's process ends; `died()` asks the same (a
    child that the candidate forked may hold the channel open after its parent's end).
    """
    wait = Waiter((channel,), deadline, died, watch)
    length = _length(_exactly(channel, _HEADER.size, wait))
    if length > most_bytes:
        raise BrokenReply(f"a reply of {length} bytes")
    body = _exactly(channel, length, wait)
    try:
        reply = Reply.model_validate_json(body)
    except ValidationError as error:
        raise BrokenReply(f"not a reply: {body[:80]!r}") from error
    if reply.id != request_id or (reply.value is None) == (reply.error is None):
        raise BrokenReply("a reply that answers another request")
    return reply


def _frame(body: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, len(body)) + body


def _length(header: bytes) -> int:
    magic, length = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise BrokenReply(f"garbage on the channel: {header!r}")
    return length


def _exactly(channel: socket.socket, count: int, wait: Callable[[], object]) -> bytes:
    parts = []
    while count:
        wait()
        part = channel.recv(min(count, 1 << 20))
        if not part:
            raise BrokenReply("the channel closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _blocking() -> None:
    """recv itself waits."""


class Waiter:
    """Blocks until one of the channels is readable, and returns the first of them that is. BrokenReply when
    the worker has ended, ReplyTimeout when the deadline has passed."""

    _SLICE_S = 0.2  # how often a worker without a watchable descriptor is asked whether it still lives

    def __init__(
        self,
        channels: Sequence[socket.socket],
        deadline: float,
        died: Callable[[], bool],
        watch: int | None,
    ) -> None:
        self._channels, self._deadline, self._died, self._watch = channels, deadline, died, watch
        self._poll = select.poll()
        for channel in channels:
            self._poll.register(channel, select.POLLIN)
        if watch is not None:
            self._poll.register(watch, select.POLLIN)

    def __call__(self) -> socket.socket:
        while True:
            now = time.monotonic()
            if now >= self._deadline:
                raise ReplyTimeout
            rest_s = self._deadline - now
            if self._watch is None:
                rest_s = min(rest_s, self._SLICE_S)
            ready = {fd for fd, _ in self._poll.poll(1000 * rest_s)}
            for channel in self._channels:
                if channel.fileno() in ready:
                    return channel
            if self._watch in ready or (self._watch is None and self._died()):
                raise BrokenReply("the process ended")
