"""The processes that compute one model, as rank 0 sees them: the caller's own, which starts the others.

    requests -> scheduler -> plan -> launch         rank 0        ids come back here alone
                              └──────▶ launch       rank r        collectives meet on the devices

Rank 0 alone schedules. Requests come, are aborted and are read in its process only, some by their text and by
functions of the caller; a second scheduler would have to hear of all that in the same order. A plan says
everything about a step: a few hundred bytes for a decode step, sent while the device computes the one before.
Each rank chooses the same ids (split_vocabulary.py), so none has to be sent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from fastkernels.engine.core.follower import Blueprint, Failure, follow, join, leave
from fastkernels.engine.core.model_runner import Flight, ModelRunner
from fastkernels.engine.core.plan import Admission, Plan
from fastkernels.engine.core.request import Request
from fastkernels.errors import MachineError, UsageError
from fastkernels.kernels import base as kernels
from fastkernels.kernels import symmetric
from fastkernels.kernels.group import use_group
from fastkernels.nn.partition import use_partition

_NOTICE_S = 2.0  # in which a rank tells its error, or its process ends, once rank 0 has noticed one
_LOOK_S = 0.05  # how often rank 0 looks whether the others live while it waits for its device
_END_S = 10.0  # for an orderly end
# Not with -m: what it sends would be of a module __main__.
_PROGRAM = "from fastkernels.engine.core import follower; follower.start({channel}, {rank})"


class _Process(Protocol):
    pid: int

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self) -> int | None: ...


class _Forked:
    """A fork as subprocess shows a program."""

    def __init__(self, pid: int) -> None:
        self.pid, self._code = pid, None

    def poll(self) -> int | None:
        return self._code if self._code is not None else self._asked(os.WNOHANG)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int | None:
        return self._code if self._code is not None else self._asked(0)

    def _asked(self, how: int) -> int | None:
        pid, status = os.waitpid(self.pid, how)
        self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


@dataclass
class _Other:
    rank: int
    process: _Process
    channel: Connection
    failure: Failure | None = None
    words: list[Any] = field(default_factory=list)  # what it said and nobody has asked for yet

    def listen(self, wait_s: float = 0.0) -> None:
        """Take all that it says, if it says something in this time."""
        with contextlib.suppress(EOFError, OSError):
            while self.channel.poll(wait_s):
                said, wait_s = self.channel.recv(), 0.0
                if isinstance(said, Failure):
                    self.failure = said
                else:
                    self.words.append(said)


class Ranks:
    """The ranks of a model. Of one rank nothing is started, and everything is as if it were not there."""

    def __init__(self, blueprint: Blueprint) -> None:
        """Starts the other ranks, which load their parts from now on."""
        self.blueprint = blueprint
        self._broken: str | None = None
        self._others: list[_Other] = []
        self._group: Any = None
        self._runner: ModelRunner | None = None
        self._look_at = 0.0
        if blueprint.size > 1:
            self._folder = tempfile.mkdtemp(prefix="fk-ranks-")
            self.blueprint = replace(
                blueprint,
                place=os.path.join(self._folder, "store"),
                threads=max(1, torch.get_num_threads() // blueprint.size),
                forced=kernels.forced(),
            )
            try:
                for rank in range(1, blueprint.size):
                    self._others.append(self._started(rank))
                self._tell(self.blueprint)
            except BaseException:
                self.close(in_order=False)
                raise

    @property
    def size(self) -> int:
        return self.blueprint.size

    @property
    def pids(self) -> list[int]:
        """Of the other ranks' processes."""
        return [other.process.pid for other in self._others]

    def _started(self, rank: int) -> _Other:
        ours, theirs = socket.socketpair()
        with theirs:
            if self.blueprint.device_type == "cpu" and _is_single_threaded():
                process = self._forked(rank, theirs, ours)
            else:
                program = _PROGRAM.format(channel=theirs.fileno(), rank=rank)
                # What is imported here, wherever from, is imported there; the caller's folder is not.
                path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
                process = subprocess.Popen(
                    [sys.executable, "-c", program], pass_fds=[theirs.fileno()], env=os.environ | path
                )
        return _Other(rank, process, Connection(ours.detach()))

    def _forked(self, rank: int, theirs: socket.socket, ours: socket.socket) -> _Forked:
        """What is imported and set here is there at once."""
        pid = os.fork()
        if pid:
            return _Forked(pid)
        try:
            ours.close()
            for other in self._others:
                other.channel.close()  # one that rank 0 closes must be closed
            follow(Connection(theirs.detach()), rank)
        finally:
            os._exit(1)

    # ---- building

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """What is made in the body is rank 0's part."""
        with self._together(), use_partition(self.blueprint.partition(0)):
            yield

    def meet(self) -> None:
        """Once all parts are loaded: collectives work from now on."""
        if self.size > 1:
            self._hear("loaded")
            self._tell("join")
            with self._together():
                self._group = join(self.blueprint, 0)

    def least(self, room: int) -> int:
        """Of what each rank has room for; the others hear it too."""
        if self.size == 1:
            return room
        found = min(room, *(self._heard(other) for other in self._others))
        self._tell(found)
        return found

    def ready(self) -> None:
        """Wait until the others are built as well."""
        self._hear("built")

    # ---- steps

    def device(self, runner: ModelRunner) -> Any:
        """What launches a step on every rank."""
        self._runner = runner
        return runner if self.size == 1 else _OnAll(self, runner)

    def launch(self, runner: ModelRunner, plan: Plan) -> Flight:
        with self._together():
            self._tell((_bare(plan), runner.pool.disabled))
            return runner.launch(plan)

    def alive(self) -> None:
        """MachineError where another rank has ended: what the device computes would wait for it."""
        if (now := time.monotonic()) >= self._look_at:
            self._look_at = now + _LOOK_S
            if (why := self._fallen()) is not None:
                self.close(in_order=False)
                raise why

    # ---- the end

    def close(self, in_order: bool = True) -> None:
        """End the other ranks. in_order: they and the device are well."""
        others, self._others = self._others, []
        if self.size == 1 or self._broken is not None:
            return
        self._broken = "its ranks have been shut down"
        if in_order and self._group is not None and self._runner is not None:
            for other in others:
                with contextlib.suppress(OSError):
                    other.channel.send(None)
            leave(self._runner)
            _await([other.process for other in others], _END_S)
        for other in others:
            other.process.kill()
            other.process.wait()
            other.channel.close()
        if not in_order and self._group is not None:
            _abandon_the_group(self.blueprint.device_type)
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- what passes between them

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Where the body fails the ranks are at different places, and of no use any more. What another rank
        failed with before is what it fails with."""
        if self._broken is not None:
            raise MachineError(f"This model cannot be used any more, {self._broken}: make a new LLM")
        if self.size == 1:
            yield
            return
        try:
            with use_group(self._group):
                yield
        except BaseException as error:
            # Ours say the same on every rank; others may be what a rank's end looks like from here.
            noticed = isinstance(error, (RuntimeError, OSError))
            why = self._fallen(_NOTICE_S) if noticed else None
            self.close(in_order=False)
            if why is not None:
                raise why from error
            raise

    def _tell(self, what: Any) -> None:
        said = pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL)
        for other in self._others:
            other.channel.send_bytes(said)

    def _hear(self, word: str) -> None:
        for other in self._others:
            found = self._heard(other)
            assert found == word, (found, word)

    def _heard(self, other: _Other) -> Any:
        """What it says next."""
        while not other.words:
            other.listen(_LOOK_S)
            self._look_at = 0.0
            self.alive()
        return other.words.pop(0)

    def _fallen(self, wait_s: float = 0.0) -> MachineError | UsageError | None:
        """Why another rank has ended; the first of them. wait_s: for one that is about to."""
        deadline = time.monotonic() + wait_s
        while True:
            ended = [other for other in self._others if other.process.poll() is not None]
            for other in self._others:
                other.listen()
            failures = [(other, other.failure) for other in self._others if other.failure]
            if failures:
                return _error(*min(failures, key=lambda found: found[1].at_ns))
            if ended:
                return _error(ended[0], None)
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.01)


class _OnAll:
    """A device that is all ranks'."""

    def __init__(self, ranks: Ranks, runner: ModelRunner) -> None:
        self._ranks, self._runner = ranks, runner

    def launch(self, plan: Plan) -> Flight:
        return self._ranks.launch(self._runner, plan)


def _error(other: _Other, failure: Failure | None) -> MachineError | UsageError:
    if failure is None:
        code = other.process.poll()
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return MachineError(
            f"rank {other.rank} (process {other.process.pid}) has ended {how}: make a new LLM"
        )
    if failure.exit_code == UsageError.exit_code:
        return UsageError(failure.message)
    trace = "" if failure.exit_code is not None else f"\n{failure.traceback}"
    return MachineError(f"rank {other.rank}: {failure.message}{trace}")


def _bare(plan: Plan) -> Plan:
    """Without what only rank 0 looks at, some of which cannot travel."""
    scored = plan.scored
    if scored is not None:
        scored = replace(scored, spans=[(_bare_request(r), *span) for r, *span in scored.spans])
    return replace(plan, admitted=[_bare_admission(a) for a in plan.admitted], scored=scored)


def _bare_admission(admission: Admission) -> Admission:
    tokens: Any = np.array(admission.tokens, np.int32)
    return Admission(admission.row, _bare_request(admission.request), tokens)


def _bare_request(request: Request) -> Request:
    length: Any = range(len(request.prompt))  # the ids are among the admission's
    nothing = {"output": [], "logprobs": [], "prompt_logprobs": None, "digests": [], "stop_ids": ()}
    return replace(request, prompt=length, on_token=None, transcript=None, **nothing)


def _is_single_threaded() -> bool:
    """Whether a fork is safe: a thread that does not come along may hold a lock. (A GPU, of which this
    process may have asked something, does not come along either.)"""
    tasks = Path("/proc/self/task")
    return tasks.is_dir() and len(list(tasks.iterdir())) == 1


def _await(processes: list[_Process], most_s: float) -> None:
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.01)


def _abandon_the_group(device_type: str) -> None:
    """Of ranks that are no more: kernels that wait for them give up, or this process goes on without."""
    if device_type == "cpu":
        dist.destroy_process_group()
        return
    symmetric.abandon()
    aborting = threading.Thread(target=dist.distributed_c10d._abort_process_group, daemon=True)
    aborting.start()
    aborting.join(_END_S)
