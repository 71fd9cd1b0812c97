"""A rank beside the first, in a process that the first one forked; and how all of them start at once."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from fastkernels.runner.protocol import (
    BrokenReply,
    ErrorReport,
    Reply,
    ReplyTimeout,
    Request,
    receive_reply,
    receive_request,
    send_reply,
    send_request,
)
from fastkernels.runner.worker import report

NOTICE_S = 2.0  # in which ranks tell their errors once one has failed
_PR_SET_PDEATHSIG = 1
_START_TIMEOUT_S = 10.0  # ranks come within a millisecond of each other
_AT, _REPORT = "failed_at_ns", "report"


@dataclass(frozen=True)
class Failed:
    """A rank's answer that is an error, and when that was (CLOCK_MONOTONIC, the same for all ranks)."""

    at_ns: int
    report: ErrorReport


def failure(error: BaseException, side: Any) -> Failed:
    return Failed(time.monotonic_ns(), report(error, side))


class Start:
    """Lets all ranks begin when the last one is ready: each counts its calls in memory that they share."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._counts = memoryview(mmap.mmap(-1, 8 * ranks)).cast("q")

    def of(self, rank: int) -> Callable[[], None]:
        counts, yields, clock = self._counts, os.sched_yield, time.monotonic

        def wait() -> None:
            counts[rank] += 1
            number, deadline = counts[rank], clock() + _START_TIMEOUT_S
            while min(counts) < number:
                yields()
                if clock() > deadline:
                    raise TimeoutError(f"another rank was not ready within {_START_TIMEOUT_S:.0f} s")

        return wait


class Peer:
    """The first rank's end. The process builds its side with `make(rank)` and serves it from then on."""

    def __init__(self, rank: int, make: Callable[[int], Any], others: Sequence[Peer]) -> None:
        """`others`: peers that are there already, whose channels are none of the new one's business."""
        self.rank = rank
        self._channel, theirs = socket.socketpair()
        first = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            for channel in (self._channel, *(other._channel for other in others)):
                channel.close()
            # A fork does not inherit the order to end with its parent.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != first:
                os._exit(1)
            _serve(theirs, rank, make)
        theirs.close()
        self.watch = os.pidfd_open(self._pid)  # readable once it has ended

    def ask(self, do: str, descriptors: Sequence[int], arguments: dict[str, Any]) -> None:
        self._request = Request(do, arguments, len(descriptors))
        with contextlib.suppress(OSError):  # it has ended, and `answer` says so
            send_request(self._channel, self._request, descriptors)

    def answer(self, deadline: float | None) -> dict[str, Any] | Failed:
        """Of what was asked last, until `deadline` (time.monotonic; None: whenever it comes)."""
        until = float("inf") if deadline is None else deadline
        try:
            value = receive_reply(self._channel, self._request.id, until, self._has_ended).value or {}
        except ReplyTimeout:
            return Failed(time.monotonic_ns(), _plain("it waits for the others"))
        except (BrokenReply, OSError):
            return Failed(0, _plain("its process ended"))  # whatever others say follows from it
        if _AT in value:
            return Failed(value[_AT], ErrorReport.model_validate(value[_REPORT]))
        return value

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_with(peers: Sequence[Peer]) -> None:
    """End this process, the first rank, some seconds after a peer whose error it has not told the judge: it
    waits for it in a call that nothing interrupts. What it prints is what the judge then hears of."""

    def watch() -> None:
        (ended, *_), _, _ = select.select([peer.watch for peer in peers], [], [])
        time.sleep(2 * NOTICE_S)
        peer = next(peer for peer in peers if peer.watch == ended)
        answer = peer.answer(time.monotonic() + NOTICE_S)
        said = f"\n{answer.report.traceback}" if isinstance(answer, Failed) else ""
        os.write(2, f"rank {peer.rank} has ended, and rank 0 waits for it{said}\n".encode())
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _plain(message: str) -> ErrorReport:
    return ErrorReport(kind="RuntimeError", message=message)


def _serve(channel: socket.socket, rank: int, make: Callable[[int], Any]) -> NoReturn:
    side: Any = None
    try:
        side = make(rank)
        while True:
            request, descriptors = receive_request(channel)
            extra = {"descriptors": descriptors} if descriptors else {}
            value, failed = {}, None
            try:
                value = getattr(side, request.do)(**request.arguments, **extra) or {}
            except BaseException as error:
                failed = failure(error, side)
                value = {_AT: failed.at_ns, _REPORT: failed.report.model_dump()}
            send_reply(channel, Reply(id=request.id, value=value))
            if failed:
                break
    except EOFError:
        pass  # the first rank ended
    finally:
        os._exit(1)
