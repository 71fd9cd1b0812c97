"""A process of `fk tune`, which looks at cases or times them, and is ended where a first call takes too long.

    lane = Lane("cuda", threads=2)
    lane.look(case, skip) or lane.time(case, looked, budget_s)      begins
    lane.answer(limit_s)        None while it works; else what it says, or why it says nothing

It has a session of its own: compilers that a library starts end with it.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from fastkernels.measure.room import in_short, is_the_machines
from fastkernels.measure.unused import give_back
from fastkernels.records import Case, Device
from fastkernels.runner.tuning.look import Looked, look
from fastkernels.runner.tuning.stopwatch import Stopwatch, Timed

_NOWHERE = ("", "", 0.0)
_START_S = 120.0  # for imports and CUDA's start, beside a first call


@dataclass(frozen=True)
class Lost:
    """No answer: at which kernel and implementation (empty: before any), and why."""

    kernel: str
    implementation: str
    why: str


@dataclass(frozen=True)
class Failed:
    """An error of the case as a whole. `lacks_memory`: it may go well with the device to itself."""

    why: str
    lacks_memory: bool


@dataclass(frozen=True)
class _Look:
    case: Case
    skip: frozenset[tuple[str, str]]
    is_alone: bool


@dataclass(frozen=True)
class _Time:
    case: Case
    looked: Looked
    budget_s: float


Answer = Looked | Timed | Lost | Failed


class Lane:
    def __init__(self, device: Device, threads: int) -> None:
        self._arguments = (device, threads)
        self._at, self._since = _NOWHERE, 0.0  # the last first call that began, and when
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=False)
        self._process.start()
        theirs.close()
        self._fresh = True

    def look(self, case: Case, skip: frozenset[tuple[str, str]], is_alone: bool) -> None:
        """is_alone: no other lane is at work."""
        self._ask(_Look(case, skip, is_alone))

    def time(self, case: Case, looked: Looked, budget_s: float) -> None:
        self._ask(_Time(case, looked, budget_s))

    def _ask(self, question: _Look | _Time) -> None:
        self._at, self._since = _NOWHERE, time.monotonic()
        with contextlib.suppress(ConnectionError):  # of a process that has died: `answer` hears of it
            self.connection.send(question)

    def answer(self, limit_s: float) -> Answer | None:
        """After what it said; a process that gave no answer is another one then."""
        said: Any = None
        try:
            while self.connection.poll():
                said = self.connection.recv()
                self._fresh = False
                if not isinstance(said, tuple):
                    return said
                self._at, self._since = said, time.monotonic()
        except (EOFError, ConnectionError):
            self._process.join()
            return self._lost(f"its process ended with exit code {self._process.exitcode}")
        *_, more_s = self._at
        if time.monotonic() - self._since > limit_s + (_START_S if self._fresh else more_s):
            return self._lost(f"its first call takes longer than {limit_s:g} s")
        return None

    def _lost(self, why: str) -> Lost:
        kernel, implementation, _ = self._at
        self.close()
        self._start()
        return Lost(kernel, implementation, why)

    def close(self) -> None:
        if self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it may not have a session yet
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, device: Device, threads: int) -> None:
    os.setsid()
    # Each process compiles for itself: a pool of compilers for every one of them would be hundreds.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch.set_num_threads(threads)
    gc.freeze()  # what is imported stays: to look through it after every case takes as long as a small one
    stopwatch: Stopwatch | None = None

    def tell(kernel: str, implementation: str, more_s: float = 0.0) -> None:
        connection.send((kernel, implementation, more_s))

    with contextlib.suppress(EOFError, ConnectionError):  # whoever asked is gone
        while True:
            question = connection.recv()
            tell(*_NOWHERE)
            answer: Answer
            try:
                if isinstance(question, _Look):
                    answer = look(question.case, device, question.skip, question.is_alone, tell)
                else:
                    stopwatch = stopwatch or Stopwatch(device)
                    answer = stopwatch.times(question.case, question.looked, question.budget_s, tell)
            except Exception as error:
                if device == "cuda":
                    torch.cuda.synchronize()  # raises where the device is lost: the process ends with it
                answer = Failed(f"{type(error).__name__}: {in_short(error)}", is_the_machines(error))
            connection.send(answer)
            # Modules are in circles of references: their memory is another case's once they are collected.
            gc.collect()
            if device == "cuda":
                give_back()
