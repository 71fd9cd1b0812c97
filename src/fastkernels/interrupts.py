"""Ctrl-C and what means the same: the first one ends the work, and no later one ends the tidying up.

`fk` heeds signals for as long as a verb runs:

    SIGINT     Ctrl-C
    SIGTERM    `timeout`, schedulers
    SIGHUP     the terminal was closed

The first raises KeyboardInterrupt, which a run turns into a report of what was finished. Whoever sees nothing
happen sends another one: it is answered by a line, since it would cost the report and leave folders behind.
SIGQUIT (Ctrl-\\) and SIGKILL still end everything at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN = b"stopping: what was finished is reported, and processes and folders are removed\n"


class _Heeding:
    def __init__(self) -> None:
        self.stopping = False
        self._holds = 0  # bodies of `held` that run now
        self._waits = False  # an interruption, until they end
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._let_go()
        if self.stopping:
            with contextlib.suppress(OSError):  # nobody may read it any more: no reason to stop tidying up
                os.write(2, _AGAIN)
            return
        self.stopping = True
        if self._holds:
            self._waits = True
        else:
            raise KeyboardInterrupt

    def hold(self) -> None:
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        if self._waits and not self._holds:
            self._waits = False
            raise KeyboardInterrupt

    def _let_go(self) -> None:
        """Of terminals that are gone: whatever is printed there would raise, and the report is not written
        yet."""
        for stream in self._terminals:
            if not os.isatty(stream):
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)


_heeding: _Heeding | None = None


@contextlib.contextmanager
def heeded(last: bool = False) -> Iterator[None]:
    """In the body signals are as above. What is ignored stays so (`nohup`, a shell's background). `last`: the
    process ends with it, with an exit status that no further signal takes from it."""
    global _heeding
    if _heeding is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _heeding = _Heeding()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, _heeding)
    try:
        yield
    finally:
        ends = last and _heeding.stopping
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN if ends else before[number])
        _heeding = None


@contextlib.contextmanager
def held() -> Iterator[None]:
    """In the body, which tidies up, the first of these signals waits for its end. Also a decorator."""
    if _heeding is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    heeding = _heeding
    heeding.hold()
    try:
        yield
    finally:
        heeding.release()
