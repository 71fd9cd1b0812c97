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
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from fastkernels.runner.inside.main import report
from fastkernels.runner.transfer.protocol import (
    BrokenReply,
    ErrorReport,
    Reply,
    Request,
    receive_reply,
    receive_request,
    send_reply,
    send_request,
)

_PR_SET_PDEATHSIG = 1
_START_TIMEOUT_S = 10.0  # ranks come within a millisecond of each other
_NOTICE_S = 2.0  # in which ranks tell their errors once one has failed
_LOOK_S = 0.2  # how often those that do not answer are asked whether they still live
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

    def of(self, rank: int) -> Begin:
        return Begin(self._counts, rank)


class Begin:
    """A rank's beginnings: a call returns when all ranks are ready."""

    def __init__(self, counts: memoryview, rank: int) -> None:
        self._counts, self._rank, self._ahead = counts, rank, False
        self._least, self._yields, self._clock = min, os.sched_yield, time.monotonic

    def __call__(self) -> None:
        counts, least, yields, clock = self._counts, self._least, self._yields, self._clock
        if not self._ahead:
            counts[self._rank] += 1
        self._ahead = False
        number, deadline = counts[self._rank], clock() + _START_TIMEOUT_S
        while least(counts) < number:
            yields()
            if clock() > deadline:
                raise TimeoutError(f"another rank was not ready within {_START_TIMEOUT_S:.0f} s")

    def let_go(self) -> None:
        """The others do not wait for this rank's next beginning."""
        self._counts[self._rank] += 1
        self._ahead = True


class Peer:
    """The first rank's end. The process builds its side with `make(rank)` and serves it from then on. Where
    that fails, it says why on stderr and ends the first rank, which may wait for it to join the group."""

    def __init__(self, rank: int, make: Callable[[int], Any], others: Sequence[Peer]) -> None:
        """`others`: peers that are there already, whose channels are none of the new one's business."""
        self.rank = rank
        self._channel, theirs = socket.socketpair()
        with theirs:
            first = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                _be(rank, make, theirs, first, [self._channel, *(other._channel for other in others)])
        self.watch = os.pidfd_open(self._pid)  # readable once it has ended

    def ask(self, do: str, descriptors: Sequence[int], arguments: dict[str, Any]) -> None:
        self._request = Request(do, arguments, len(descriptors))
        with contextlib.suppress(OSError):  # it has ended, and `answer` says so
            send_request(self._channel, self._request, descriptors)

    def fileno(self) -> int:
        """Readable when it answers, and when it has ended."""
        return self._channel.fileno()

    def answer(self) -> dict[str, Any] | Failed:
        """Of what was asked last."""
        try:
            value = receive_reply(self._channel, self._request.id, float("inf"), self.has_ended).value or {}
        except (BrokenReply, OSError):
            return Failed(0, _plain("its process ended"))  # whatever others say follows from it
        if _AT in value:
            return Failed(value[_AT], ErrorReport.model_validate(value[_REPORT]))
        return value

    def has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the candidate has asked already
            return True


def answers(peers: Sequence[Peer], failed: bool) -> list[dict[str, Any] | Failed]:
    """Of what the peers were asked last, in their order, whichever comes first. As soon as a rank has failed
    (`failed`: the first one has), those that say nothing for _NOTICE_S wait for it, or hang."""
    found: dict[Peer, dict[str, Any] | Failed] = {}
    deadline = time.monotonic() + _NOTICE_S if failed else float("inf")
    while waiting := [peer for peer in peers if peer not in found]:
        left = max(deadline - time.monotonic(), 0)
        ready = _readable(waiting, min(left, _LOOK_S))
        # A child that the candidate forked may hold the channel of a rank that has ended.
        for peer in ready or [peer for peer in waiting if peer.has_ended()]:
            found[peer] = answer = peer.answer()
            if isinstance(answer, Failed):
                deadline = min(deadline, time.monotonic() + _NOTICE_S)
        if not ready and not left:
            now = time.monotonic_ns()
            silent = [peer for peer in waiting if peer not in found]
            found |= dict.fromkeys(silent, Failed(now, _plain("it waits for the others")))
    return [found[peer] for peer in peers]


def _readable(peers: Sequence[Peer], timeout_s: float) -> list[Peer]:
    poll = select.poll()
    for peer in peers:
        poll.register(peer, select.POLLIN)
    found = {descriptor for descriptor, _ in poll.poll(1000 * timeout_s)}
    return [peer for peer in peers if peer.fileno() in found]


def end_with(peers: Sequence[Peer]) -> None:
    """End this process, the first rank, some seconds after a peer whose error it has not told the judge: it
    waits for it in a call that nothing interrupts. What it prints is what the judge then hears of."""

    def watch() -> None:
        (ended, *_), _, _ = select.select([peer.watch for peer in peers], [], [])
        time.sleep(2 * _NOTICE_S)
        peer = next(peer for peer in peers if peer.watch == ended)
        answer = peer.answer()
        said = f"\n{answer.report.traceback}" if isinstance(answer, Failed) else ""
        os.write(2, f"rank {peer.rank} has ended, and rank 0 waits for it{said}\n".encode())
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _plain(message: str) -> ErrorReport:
    return ErrorReport(kind="RuntimeError", message=message)


def _be(
    rank: int,
    make: Callable[[int], Any],
    channel: socket.socket,
    first: int,
    of_others: Sequence[socket.socket],
) -> NoReturn:
    """What the forked process does: nothing of it goes on as the first rank would."""
    joined = False
    try:
        for other in of_others:
            other.close()
        # A fork does not inherit the order to end with its parent.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == first:
            side = make(rank)
            joined = True
            _serve(channel, side)
    except BaseException:
        traceback.print_exc()
        if not joined and os.getppid() == first:
            os.kill(first, signal.SIGKILL)
    finally:
        os._exit(1)


def _serve(channel: socket.socket, side: Any) -> None:
    """Until the first rank ends, or a call fails."""
    with contextlib.suppress(EOFError, OSError):
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
