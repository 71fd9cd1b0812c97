"""From options to a server that runs until it is told to stop: loads, listens, drains, ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import uvicorn

from fastkernels import interrupts
from fastkernels.engine.media.text import Text
from fastkernels.errors import FastKernelsError, UsageError
from fastkernels.runner.models.e2e import EngineOptions, tokenizer_of
from fastkernels.serve.app import Served, make_app
from fastkernels.serve.engine_client import EngineClient, raised
from fastkernels.serve.messages import Failed


@dataclass(frozen=True)
class ServeOptions:
    """drain_s: seconds that open answers get to end once the server is told to stop."""

    engine: EngineOptions
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None  # of the model, for clients
    api_key: str | None = None
    chat_template: str | None = None  # in place of the tokenizer's
    max_body: int = 64 << 20  # bytes
    max_requests: int = 4096
    drain_s: int = 60


def serve(options: ServeOptions, tell: Callable[[str], None], listening: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; then no new connection is taken, and open answers are finished.

    tell(text): of what goes on before. listening(url): requests are answered from now on. Raises UsageError
    and its kin for what cannot be loaded or listened on, and FastKernelsError if the engine ended.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_bound(options.host, options.port))
        tell(f"loading {options.engine.model}")
        engine = EngineClient(options.engine)
        stack.callback(engine.stop)
        ready = engine.ready()
        named = options.engine.tokenizer
        text = Text(
            None if named is None else tokenizer_of(named),
            None if ready.folder is None else Path(ready.folder),
        )
        _ = text.tokenizer  # a broken one is told now
        served = Served(
            options.name or options.engine.model,
            options.max_body,
            options.max_requests,
            options.api_key,
            options.chat_template,
        )
        config = uvicorn.Config(
            make_app(engine, ready, text, served),
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=options.drain_s,
        )
        server = _Server(config, lambda: listening(_url(listener)))
        engine.on_failure = server.end
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn has heeded it, and tells it once more
            server.run([listener])
        if engine.failure is not None:
            raise engine.failure


@contextlib.contextmanager
def running(options: ServeOptions) -> Iterator[str]:
    """The address of a server that runs beside the body, in a process of its own. Raises as `serve` does
    before it listens."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_beside, args=(theirs, options), name="fk serve")
    process.start()
    theirs.close()
    try:
        try:
            told = ours.recv()
        except EOFError:
            raise FastKernelsError("the server ended before it listened: its last words are above") from None
        if isinstance(told, Failed):
            raise raised(told)
        yield told
    finally:
        process.terminate()  # it drains
        process.join()


def _beside(connection: Connection, options: ServeOptions) -> None:
    with interrupts.heeded(last=True):
        try:
            serve(options, lambda text: None, connection.send)
        except FastKernelsError as error:
            connection.send(Failed(str(error), error.exit_code))


class _Server(uvicorn.Server):
    """Says when it has started."""

    def __init__(self, config: uvicorn.Config, say: Callable[[], None]) -> None:
        super().__init__(config)
        self._say = say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say()

    def end(self) -> None:
        """As a signal does."""
        self.should_exit = True


def _bound(host: str, port: int) -> socket.socket:
    """Before the model is loaded: whoever cannot listen need not wait for it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise UsageError(f"--host {host} --port {port}: {error.strerror or error}") from error
    return bound


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
