"""The process on the other side, started by worker/pool.py: `main(CHANNEL NAMESPACES MEMORY HIDDEN FOLDER
CORES USER READ...)`, in a fork of a template (worker/template.py), or as a program, `python -m
fastkernels.runner.inside.main CHANNEL ...`.

It separates itself from the judge, builds the side that the judge asks for, and answers calls until the
judge closes the channel. What the side raises is reported; what it prints goes to the file that the judge
opened.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastkernels.layout import file_of
from fastkernels.runner.sandbox import flashinfer_builds, isolation

if TYPE_CHECKING:
    from fastkernels.loader.overlay import Overlay
    from fastkernels.runner.transfer.protocol import ErrorReport

_TRACEBACK_LINES = 40


def main(arguments: list[str]) -> None:
    number, namespaces, memory_bytes, hidden = (int(argument) for argument in arguments[:4])
    folder, cores, user = Path(arguments[4]), arguments[5], int(arguments[6])
    reads = [Path(read) for read in arguments[7:]]
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    os.chdir(folder / "work")
    reached = isolation.enter(bool(namespaces), memory_bytes or None, bool(hidden), folder, user, reads)
    flashinfer_builds.import_from(folder)
    from fastkernels.runner.transfer.protocol import Reply, receive_request, send_reply

    os.set_inheritable(number, False)
    channel = socket.socket(fileno=number)
    side: Any = None
    while True:
        try:
            request, descriptors = receive_request(channel)
        except EOFError:
            os._exit(0)  # nothing here is worth a slow shutdown of a device context
        try:
            if request.do == "import":
                side, value = _unbuilt(request.arguments["side"]), {}
            elif request.do == "start":
                # Where this raises, the overlay that the side has by then says in which file.
                side.__init__(**request.arguments["arguments"])
                hello = side.hello() if hasattr(side, "hello") else {}
                value = {**hello, **asdict(reached)}
            else:
                extra = {"descriptors": descriptors} if descriptors else {}
                value = getattr(side, request.do)(**request.arguments, **extra)
            reply = Reply(id=request.id, value=value or {})
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a candidate are its failures
            reply = Reply(id=request.id, error=report(error, side))
        send_reply(channel, reply)


def _unbuilt(side: str) -> Any:
    module, _, name = side.partition(":")
    kind = getattr(importlib.import_module(module), name)
    return kind.__new__(kind)


def report(error: BaseException, side: Any) -> ErrorReport:
    """What the judge is told of an error; the side's overlay says in which file it is."""
    from fastkernels.runner.transfer.protocol import ErrorReport, Reported

    if isinstance(error, Reported):
        return error.report
    place = None
    overlay = getattr(side, "overlay", None)
    if overlay is not None:
        place = overlay.blame(error)
    elif side is None:
        place = _in_package(error)
    said = traceback.TracebackException.from_exception(error)  # also of one that cannot say what it is
    trace, advice = _last_lines(said), ""
    if overlay is not None:
        _leave_out_the_harness(said, overlay)
        advice = f". {found}" if (found := overlay.advice(error)) else ""
    return ErrorReport(
        kind=_encodable(type(error).__name__),
        message=_encodable(f"{said.msg if isinstance(error, SyntaxError) else said}{advice}"),
        traceback=_last_lines(said),
        trace=trace,
        file=_encodable(str(place[0])) if place else None,
        line=place[1] if place else None,
    )


def _last_lines(said: traceback.TracebackException) -> str:
    return _encodable("\n".join("".join(said.format()).splitlines()[-_TRACEBACK_LINES:]))


def _leave_out_the_harness(said: traceback.TracebackException, overlay: Overlay) -> None:
    """Of an exception and of those that it came from: what called the candidate, what imported its files, and
    our own frames where the candidate has none."""
    package, importer = Path(__file__).parents[2], file_of(type(overlay))
    at: traceback.TracebackException | None = said
    while at is not None:
        files = [Path(frame.filename) for frame in at.stack]
        first = next((i for i, file in enumerate(files) if overlay.is_candidates(file)), None)
        kept = [
            frame
            for i, frame in enumerate(at.stack)
            if files[i] != importer
            and (not files[i].is_relative_to(package) if first is None else i >= first)
        ]
        at.stack = traceback.StackSummary.from_list(kept)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)


def _in_package(error: BaseException) -> tuple[Path, int] | None:
    """Where in this package an import failed: it may be another revision's."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno))
    package = Path(__file__).parents[2]
    ours = [(Path(name), line or 1) for name, line in frames if Path(name).is_relative_to(package)]
    return ours[-1] if ours else None


def _encodable(text: str) -> str:
    """With escapes for half characters: a compiler's bytes may have been decoded to them."""
    return text.encode(errors="backslashreplace").decode()


if __name__ == "__main__":
    main(sys.argv[1:])
