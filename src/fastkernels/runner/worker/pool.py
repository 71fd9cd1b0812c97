"""The judge's end of its workers: start them, call them, pause them between their turns, and end them.

A worker runs one *side*, an object named `module:Class` that the worker's process builds and whose methods
answer with JSON values. A call that raises is a `WorkerError` (the worker lives on); a process that ends or
answers garbage is a `WorkerDied`, one that takes too long is killed and is a `WorkerDied` with status
TIMEOUT.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fastkernels import interrupts
from fastkernels.records import Failure, Printable, Record
from fastkernels.runner.sandbox import flashinfer_builds, isolation
from fastkernels.runner.sandbox import user as new_user
from fastkernels.runner.transfer.protocol import (
    MAX_REPLY_BYTES,
    BrokenReply,
    ErrorReport,
    ReplyTimeout,
    Request,
    Waiter,
    receive_reply,
    send_request,
)
from fastkernels.runner.worker import process, resources, template
from fastkernels.runner.worker.process import Standing, executed, importing_from

_PROGRAM = "fastkernels.runner.inside.main"
START_TIMEOUT_S = 180.0  # Python, torch and a CUDA context on a cold disk
_STOP_TIMEOUT_S = 10.0  # after SIGSTOP as well; a thread in the middle of a system call finishes that first
_COMPANY_TIMEOUT_S = 0.5  # for what it started, which has no business in a system call that long
_STOP_LOOK_S = 20e-6
_COMPANY_SHARE = 0.125  # of pauses look for other members of the group, in secret: among all processes


class WorkerProblem(Exception):
    """A worker could not answer; `failure` is what a user needs to see."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


_NO_DRIVER = "0 active drivers"  # Triton's words where it finds no GPU
_INTERPRET = "Triton finds no GPU here. With TRITON_INTERPRET=1 before the command it runs on the CPU, slowly"


class WorkerError(WorkerProblem):
    """The side raised; the worker lives on."""

    def __init__(self, report: ErrorReport, printed: str) -> None:
        self.kind, self.said = report.kind, report.message
        message = f"{report.kind}: {report.message}"
        if _NO_DRIVER in report.message:
            message = f"{message.rstrip('.')}. {_INTERPRET}"
        output = "\n".join(part for part in (report.traceback.rstrip(), printed.strip()) if part)
        failure = Failure(
            message=message, file=report.file, line=report.line, output=output, trace=report.trace.rstrip()
        )
        super().__init__(failure)


class WorkerDied(WorkerProblem):
    """The process ended, answered garbage, or was killed because it took too long."""

    def __init__(self, status: Literal["CRASHED", "TIMEOUT"], message: str, printed: str) -> None:
        self.status: Literal["CRASHED", "TIMEOUT"] = status
        super().__init__(Failure(message=message, output=printed.strip()))


class _Separated(Record):
    """What a worker says of itself once its side is built: a candidate may have written it. `put_back`:
    settings of the process that imports had changed."""

    isolation: tuple[Printable, ...] = ()
    stays_root: Printable = ""
    put_back: tuple[Printable, ...] = ()


class Worker:
    """One process with one side. Use as a context manager, or call `close`."""

    def __init__(
        self,
        name: str,
        threads: int,
        shared_caches: Path | None = None,
        namespaces: bool = False,
        user: bool = False,
        memory_bytes: int | None = None,
        source: Path | None = None,
        reads: Sequence[Path] = (),
        on_cpu: bool = False,
        libraries: Sequence[str] = (),
        processes: int = 1,
        most_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        """Start the process; it is not waited for. `shared_caches`: compiler caches of our own (baseline)
        code. `user`: without namespaces, a user of its own if this one is root; `reads`: the candidate's
        folders, which that user must be able to read. `source`: the folder that it imports fastkernels from,
        instead of the judge's. `on_cpu`: it needs no other device, and runs on the cores that every such
        worker of as many threads has. `libraries`: slow ones to import that it will need, besides torch.
        `processes`: that it will have for itself, each with `threads`. `most_reply_bytes`: of an answer."""
        self.name = name
        self.isolation: tuple[str, ...] = ()
        self.imported = False  # whether its side's module could be; what follows is building the side
        self.put_back: tuple[str, ...] = ()  # settings that imports had changed before the first call
        self.stays_root = ""  # why it has no user of its own, where it was to have one
        self._paused = False
        self._secret = random.SystemRandom()
        # Other members of its group were seen, or will be there: every pause looks for them.
        self.has_company = processes > 1
        self._company: dict[int, int | None] = {}  # CPU time of those that were there when last looked for
        self.restless: str | None = (
            None  # how it ran while it should have stood still; whoever asks resets it
        )
        self.meddled: str | None = None  # what somebody else's signals did to it; whoever asks resets it
        self._asked: Request | None = None  # and has not answered
        ours = shared_caches is not None
        number = new_user.unused() if user else 0
        self._most_reply_bytes = most_reply_bytes
        cores = resources.last_cores(threads * processes) if on_cpu else []
        # Nobody can close a worker that is only half made: whatever ends this, nothing of it stays. What is
        # made and what unmakes it come without an interruption between them.
        with contextlib.ExitStack() as unmade:
            with interrupts.held():
                self.scratch = isolation.Scratch.create(shared_caches)
                unmade.callback(self.scratch.remove)
            if not ours:
                flashinfer_builds.lend(self.scratch.root)
            environment = importing_from(source, self.scratch.environment(threads))
            kind = (environment, source is None, libraries)
            if template.available():
                template.prepare(*kind)  # which takes seconds, and may be interrupted
            flags = (namespaces, memory_bytes or 0, ours)
            arguments = [*(str(int(flag)) for flag in flags), str(self.scratch.root)]
            arguments += [",".join(map(str, cores)), str(number), *map(str, reads)]
            self._channel, theirs = socket.socketpair()
            unmade.callback(self._channel.close)
            with theirs, self.scratch.output.open("ab") as output, interrupts.held():
                channel = theirs.fileno()
                if template.available():
                    self._process = template.forked(arguments, channel, output, *kind)
                else:
                    self._process = executed(_PROGRAM, arguments, channel, output, environment)
                unmade.callback(self._process.end)
            unmade.pop_all()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._process.exited()

    def start(self, side: str, timeout_s: float = START_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
        """Build the side `module:Class` with these arguments; returns what its `hello()` says."""
        self.call("import", timeout_s, side=side)
        self.imported = True
        value = self.call("start", timeout_s, arguments=arguments)
        said = {name: value.pop(name) for name in _Separated.model_fields if name in value}
        try:
            separated = _Separated.model_validate(said)
        except ValidationError as error:
            raise self._crashed("start", error) from None
        self.isolation, self.stays_root = separated.isolation, separated.stays_root
        self.put_back = separated.put_back
        return value

    def call(
        self, do: str, timeout_s: float = START_TIMEOUT_S, descriptors: Sequence[int] = (), **arguments: Any
    ) -> dict[str, Any]:
        """Call method `do` of the side. Raises WorkerError or WorkerDied; after the latter the worker is
        closed."""
        self.ask(do, descriptors, **arguments)
        return self.answer(timeout_s)

    @property
    def busy(self) -> bool:
        """Whether it was asked and has not answered."""
        return self._asked is not None

    def ask(self, do: str, descriptors: Sequence[int] = (), **arguments: Any) -> None:
        """`call`, up to where the answer is waited for."""
        self._asked = request = Request(do, arguments, len(descriptors))
        self.resume()
        with self._heard(request):
            send_request(self._channel, request, descriptors)

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """To what was asked; raises as `call` does."""
        request = self._asked
        assert request is not None
        self.resume()
        with self._heard(request, timeout_s):
            reply = receive_reply(
                self._channel,
                request.id,
                time.monotonic() + timeout_s,
                self._process.exited,
                self._process.watch,
                self._most_reply_bytes,
            )
        self._asked = None
        if reply.error is not None:
            raise WorkerError(reply.error, self.scratch.printed())
        assert reply.value is not None
        return reply.value

    def wait_at(self, gate: socket.socket, timeout_s: float) -> None:
        """Until it says something at the gate (transfer/hold_gate.py) in the course of what was asked; raises
        as `call` does."""
        request = self._asked
        assert request is not None
        with self._heard(request, timeout_s):
            ready = self._first_to_speak((gate, self._channel), timeout_s)
        if ready is self._channel:
            self.answer(timeout_s)  # which says what went wrong
            raise self._crashed(request.do, BrokenReply("it passed the gate by"))

    def comes_to(self, gate: socket.socket, within_s: float) -> bool:
        """Whether it says something at the gate so soon, or anything else does happen to it."""
        try:
            self._first_to_speak((gate, self._channel), within_s)
        except ReplyTimeout:
            return False
        except BrokenReply:
            pass  # whoever waits for it then is told
        return True

    def _first_to_speak(self, channels: Sequence[socket.socket], timeout_s: float) -> socket.socket:
        deadline = time.monotonic() + timeout_s
        return Waiter(channels, deadline, self._process.exited, self._process.watch)()

    @contextlib.contextmanager
    def _heard(self, request: Request, timeout_s: float = 0.0) -> Iterator[None]:
        """What goes wrong with the channel in the body, as WorkerDied."""
        try:
            yield
        except ReplyTimeout:
            printed = self.scratch.printed()
            self.close()
            message = f"{self.name}: no answer to '{request.do}' within {timeout_s:g} s"
            raise WorkerDied("TIMEOUT", message, printed) from None
        except (BrokenReply, OSError) as problem:
            raise self._crashed(request.do, problem) from None

    def standing(self) -> Standing | None:
        """What another process of the same user could change about this one (Linux; None elsewhere)."""
        return self._process.standing()

    def pause(self, looks: bool = False) -> int:
        """Stop the whole process group until its next call, and wait until the process stands still: nothing
        of it runs while another worker has its turn. What else is in the group is waited for once any of it
        was seen; `looks`: look for it in any case, before a turn that is worth a millisecond.

        Returns when it stood still, by time.perf_counter_ns(), with what else was seen in the group; not what
        looking took."""
        if self._paused or not self.alive:
            return time.perf_counter_ns()
        # The kernel tells a parent of every stop and every continuation; ours were taken note of.
        if self._process.changed(os.WSTOPPED | os.WCONTINUED):
            self.meddled = "was stopped in its turn"
        # Before it is: who is interrupted in between continues it, and does not wait for its answer in vain.
        self._paused = True
        self._process.send(signal.SIGSTOP)
        begin = time.monotonic()
        while not self._process.changed(os.WSTOPPED) and self.alive:
            if time.monotonic() - begin > _STOP_TIMEOUT_S:
                self.restless = f"did not stop within {_STOP_TIMEOUT_S:.0f} s"
                return time.perf_counter_ns()
            # Never without rest: the process may need this core to stop, and a yield does not give it away.
            time.sleep(_STOP_LOOK_S)
        stopped_ns = time.perf_counter_ns()
        if self.has_company:
            return self._still_company(stopped_ns)
        if looks or self._secret.random() < _COMPANY_SHARE:
            self._still_company(stopped_ns)
        return stopped_ns

    def _still_company(self, stopped_ns: int) -> int:
        """When the whole group stood still; the worker itself did at `stopped_ns`. To look at all processes
        takes longer than many calls, and is no work of theirs: where the members are those that were seen
        before, and have all stopped by the first look, they ran on for as long as their CPU time says."""
        since = {pid: process.cpu_ns(pid) for pid in self._company}
        found = process.others(self.pid)
        self.has_company = self.has_company or bool(found)
        stood = since.keys() == set(found)
        deadline = time.monotonic() + _COMPANY_TIMEOUT_S
        # A member is told to have stopped a moment before it leaves its core: its time must stand still, too.
        before: dict[int, int | None] | None = None if found else {}
        while True:
            moving = [pid for pid in found if not process.stands_still(pid)]
            self._company = {pid: process.cpu_ns(pid) for pid in found}
            if not moving and self._company == before:
                break
            if time.monotonic() > deadline:
                if moving:
                    self.restless = f"had process {moving[0]} of its own run for {_COMPANY_TIMEOUT_S:g} s"
                break
            stood = stood and not moving
            before = None if moving else self._company
            time.sleep(_STOP_LOOK_S)
        ran_ns = [now - then for pid, now in self._company.items() if now and (then := since.get(pid))]
        if stood and len(ran_ns) == len(found):
            return stopped_ns + sum(ran_ns)
        return time.perf_counter_ns()

    def resume(self) -> None:
        if not self._paused:
            return
        for pid, before in self._company.items():
            now = process.cpu_ns(pid)
            if now is not None and now != before:
                self.restless = f"had process {pid} of its own run"
        if self._process.changed(os.WSTOPPED | os.WCONTINUED):
            self.restless = "was continued"
            self.meddled = "was continued in another's turn"
        self._process.send(signal.SIGCONT)
        self._process.changed(os.WCONTINUED)
        self._paused = False

    @interrupts.held()
    def close(self) -> None:
        """Kill the process group that we started, and remove the scratch folder. May be called twice."""
        self._process.end()
        self._channel.close()
        self.scratch.remove()

    def _crashed(self, do: str, problem: Exception) -> WorkerDied:
        # An exit status is there at once where the process has ended; a garbled reply comes from a living
        # one.
        for _ in range(50):
            if self._process.exited():
                break
            time.sleep(0.01)
        ended = self._process.exited()
        printed = self.scratch.printed()
        self.close()
        status = self._process.status
        assert status is not None
        if not ended:
            how = f"its answer was no valid reply ({problem})"
        elif status < 0:
            how = f"the process was killed by {_signal_name(-status)}"
        else:
            how = f"the process exited with status {status}"
        return WorkerDied("CRASHED", f"{self.name}: {how} during '{do}'", printed)


def _signal_name(number: int) -> str:
    """SIGSEGV; real-time signals have no names of their own but the first and the last."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
