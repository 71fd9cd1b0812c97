"""A process that has imported what every worker needs, and that workers are forked from.

Importing torch takes more than a second of a core, a fork some milliseconds. A template belongs to one judge,
starts before the first worker of its kind and ends with the judge. It never touches the device, starts no
threads, and imports nothing of a candidate: what another revision's workers are forked from has imported
libraries only. A worker is the judge's own child, as if the judge had started it:

    judge       asks over the template's channel; adopts orphans (PR_SET_CHILD_SUBREAPER) until the answer
    template    forks a middle process, which forks the worker and ends; the judge becomes its parent
    worker      takes a session, an environment, descriptors and a folder of its own, and answers

Variables that act when a program starts or imports are those of the template's start, so workers whose
variables differ have different templates; those that name a worker's own folders are set after the fork.
Forked workers share the layout of their memory and the seed of `hash`, but neither with the judge.

Where the system cannot do this (it is no Linux), every worker is a new program: `available` says which.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import IO, Any, NoReturn

from fastkernels import interrupts
from fastkernels.errors import MachineError
from fastkernels.runner.inside import main as worker
from fastkernels.runner.sandbox import isolation
from fastkernels.runner.transfer.protocol import (
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
from fastkernels.runner.worker.process import Process, executed, standing

LIBRARIES = ("torch", "numpy")
# What workers of this program's own kernels import besides; those of another revision import theirs alone.
SIDES = ("inside.kernel", "ranks.ranks", "models.token", "models.program")
OURS = tuple(f"fastkernels.runner.{side}_side" for side in SIDES)

_START_TIMEOUT_S = 180.0  # Python and torch on a cold disk
_FORK_TIMEOUT_S = 60.0
_LOOK_S = 1e-4
_LAST_BYTES = 4000
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


# ---------------------------------------------------------------- inside the judge


class Template:
    """The judge's end of one template."""

    def __init__(self, environment: dict[str, str], modules: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the template
        self._channel, theirs = socket.socketpair()
        with contextlib.ExitStack() as unmade:
            with theirs, interrupts.held():
                self.process = executed(
                    "fastkernels.runner.worker.template", modules, theirs.fileno(), self._log, environment
                )
                unmade.callback(self.close)
            self._ask("hello", _START_TIMEOUT_S)
            unmade.pop_all()

    def fit(self) -> bool:
        """Whether it runs, and is scheduled as what we start ourselves: its workers inherit that."""
        stands_still = self.process.exited() or self.process.changed(os.WSTOPPED)
        return not stands_still and self.process.standing() == standing(0)

    def fork(
        self, arguments: Sequence[str], channel: int, output: IO[bytes], environment: dict[str, str]
    ) -> Process:
        with _adopting():
            answer = self._ask(
                "fork",
                _FORK_TIMEOUT_S,
                [channel, output.fileno()],
                arguments=list(arguments),
                environment=environment,
            )
        return Process(answer["pid"])

    @interrupts.held()
    def close(self) -> None:
        self.process.end()
        self._channel.close()
        self._log.close()

    def _ask(self, do: str, timeout_s: float, descriptors: Sequence[int] = (), **arguments: Any) -> dict:
        request = Request(do, arguments, len(descriptors))
        deadline = time.monotonic() + timeout_s
        try:
            send_request(self._channel, request, descriptors)
            exited, watch = self.process.exited, self.process.watch
            reply = receive_reply(self._channel, request.id, deadline, exited, watch)
        except BaseException as problem:
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LAST_BYTES))
            printed = self._log.read().decode(errors="replace")
            self.close()  # the answer may still come, and would be taken for the next one
            if not isinstance(problem, (BrokenReply, ReplyTimeout, OSError)):
                raise
            message = f"The process that workers are forked from did not answer '{do}' ({problem!r})"
            raise MachineError(f"{message}\n{printed}".rstrip()) from problem
        if reply.error is not None:
            raise MachineError(f"A worker cannot be forked: {reply.error.message}\n{reply.error.traceback}")
        return reply.value or {}


_templates: dict[tuple, Template] = {}  # by the judge's process, since a fork of it must start its own
_lock = threading.Lock()


def available() -> bool:
    return sys.platform.startswith("linux")


def forked(
    arguments: Sequence[str],
    channel: int,
    output: IO[bytes],
    environment: dict[str, str],
    ours: bool,
    libraries: Sequence[str] = (),
) -> Process:
    """A worker with these arguments of inside/main.py, from a template of its kind; the first of a kind
    starts that. `ours`: it imports this program's own source; `libraries`: others that it will import."""
    with _lock:
        return _template(environment, ours, libraries).fork(arguments, channel, output, environment)


def prepare(environment: dict[str, str], ours: bool, libraries: Sequence[str] = ()) -> None:
    """Start the template that `forked` will need, unless it is there."""
    with _lock:
        _template(environment, ours, libraries)


def _template(environment: dict[str, str], ours: bool, libraries: Sequence[str]) -> Template:
    shared = {k: v for k, v in environment.items() if k not in isolation.OWN_FOLDERS}
    modules = (*LIBRARIES, *libraries, *(OURS if ours else ()))
    kind = (os.getpid(), modules, frozenset(shared.items()))
    if kind in _templates and not _templates[kind].fit():
        _templates.pop(kind).close()
    if kind not in _templates:
        _templates[kind] = Template(shared, modules)
    return _templates[kind]


@atexit.register
def _close_all() -> None:
    for kind in [kind for kind in _templates if kind[0] == os.getpid()]:
        _templates.pop(kind).close()


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """In the body orphans among our descendants become our children, and not only then: so the body is
    short, and what it may bring of a worker's group is collected with that (Process.end)."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
        raise MachineError("This kernel cannot let a process adopt orphans (PR_SET_CHILD_SUBREAPER)")
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


# ---------------------------------------------------------------- inside the template


def main(arguments: list[str]) -> None:
    judge = os.getppid()
    isolation.hide(True)  # whoever could write here would write into every worker to come
    channel = socket.socket(fileno=int(arguments[0]))
    channel.set_inheritable(False)
    for module in arguments[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the collector would write to pages that are shared with the workers
    while True:
        try:
            request, descriptors = receive_request(channel)
        except EOFError:
            os._exit(0)  # the judge ended
        if request.do == "fork":
            _fork(channel, judge, request, descriptors)
        else:
            send_reply(channel, Reply(id=request.id, value={}))
        for descriptor in descriptors:
            os.close(descriptor)


def _fork(channel: socket.socket, judge: int, request: Request, descriptors: list[int]) -> None:
    """The worker answers the request; we do where there is none."""
    try:
        middle = os.fork()
        if middle == 0:
            _middle(channel, judge, request, descriptors)
        if os.waitpid(middle, 0)[1] != 0:
            raise MachineError("the middle process failed")
    except Exception as error:
        report = ErrorReport(kind=type(error).__name__, message=str(error))
        send_reply(channel, Reply(id=request.id, error=report))


def _middle(channel: socket.socket, judge: int, request: Request, descriptors: list[int]) -> NoReturn:
    """Ends at once, and with it what ties the worker to the template."""
    try:
        middle = os.getpid()
        if os.fork() == 0:
            _worker(channel, judge, middle, request, descriptors)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _worker(
    channel: socket.socket, judge: int, middle: int, request: Request, descriptors: list[int]
) -> NoReturn:
    # The order to die with one's parent would be carried out when the middle process ends.
    while os.getppid() == middle:
        time.sleep(_LOOK_S)
    if os.getppid() != judge:
        os._exit(1)  # it ended meanwhile
    os.setsid()
    send_reply(channel, Reply(id=request.id, value={"pid": os.getpid()}))
    channel.close()
    theirs, output = descriptors
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(request.arguments["environment"])
    if "numpy.random" in sys.modules:  # Python's own does this itself, torch's begins alike in every process
        sys.modules["numpy.random"].seed()
    _forget_folders()
    worker.main([str(theirs), *request.arguments["arguments"]])
    raise AssertionError("unreachable")


def _forget_folders() -> None:
    """What libraries made of the template's folders as it imported them: a worker has others."""
    tempfile.tempdir = None  # torch._dynamo has asked for it
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.config.debug_dir_root = os.path.join(tempfile.gettempdir(), "torch_compile_debug")


if __name__ == "__main__":
    main(sys.argv[1:])
