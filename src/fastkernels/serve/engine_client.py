"""The engine as the HTTP process has it: starts it, sends it requests, hands its events on, says that it
ended.

Two threads keep the event loop from waiting for the pipe: one reads, one writes.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.media.intake import Prompt
from fastkernels.errors import FastKernelsError
from fastkernels.runner.models.e2e import EngineOptions
from fastkernels.serve import engine_process
from fastkernels.serve.messages import Abort, Add, AskStats, Failed, Grown, Ready, Refused, Stats

Event = Grown | Refused
_STOP_S = 10.0  # for the process to end by itself


class EngineEnded(Exception):
    """The engine serves nobody any more."""


class EngineClient:
    def __init__(self, options: EngineOptions) -> None:
        self.failure: FastKernelsError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._takers: dict[str, Callable[[Event | None], None]] = {}  # by id, of what has not ended
        self._asked: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._ids = itertools.count()
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._listens = self._stopping = False
        spawning = multiprocessing.get_context("spawn")  # a fork would share what torch holds here
        self._connection, theirs = spawning.Pipe()
        self._process = spawning.Process(target=engine_process.main, args=(theirs, options), name="fk engine")
        self._process.start()
        theirs.close()

    @property
    def num_open(self) -> int:
        """Answers that have not ended."""
        return len(self._takers)

    def ready(self) -> Ready:
        """Wait until the model is loaded; FastKernelsError if it cannot be."""
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(message, Failed):
            raise raised(message)
        return message

    def listen(self) -> None:
        """Hand events to the running event loop from now on."""
        loop = asyncio.get_running_loop()
        self._listens = True
        for work in (self._read, self._write):
            threading.Thread(
                target=work, args=(loop,), daemon=True, name=f"fk engine {work.__name__}"
            ).start()

    def add(
        self, prompt: Prompt, sampling: SamplingParams, streamed: bool, take: Callable[[Event | None], None]
    ) -> str:
        """Ask for one answer. `take` gets its events, and None if the engine ends before it; EngineEnded if
        it has ended."""
        if self.failure is not None:
            raise EngineEnded(str(self.failure))
        id = str(next(self._ids))
        self._takers[id] = take
        self._messages.put(Add(id, prompt, sampling, streamed))
        return id

    def abort(self, id: str) -> None:
        """Nothing more comes for it; the engine frees its row and its blocks."""
        if self._takers.pop(id, None) is not None:
            self._messages.put(Abort(id))

    async def stats(self) -> dict[str, Any]:
        """LLM.stats(), between two steps; EngineEnded."""
        if self.failure is not None:
            raise EngineEnded(str(self.failure))
        asked: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._messages.put(AskStats())
        return await asked

    def stop(self) -> None:
        """End the process, by force if it does not end itself."""
        self._stopping = True
        if self._listens:
            self._messages.put(None)  # a close would wait for the thread that reads
        else:
            self._process.kill()  # it is loading still, and heeds nobody
        self._process.join(_STOP_S if self.failure is None else 1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        if not self._listens:
            self._connection.close()

    # ---- threads

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                message = self._connection.recv()
                loop.call_soon_threadsafe(self._hand_on, message)
                if isinstance(message, Failed):
                    return
        except (EOFError, OSError):
            if not self._stopping:
                self._process.join(1.0)
                loop.call_soon_threadsafe(self._fail, self._ended())

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                message = self._messages.get()
                self._connection.send(message)
                if message is None:
                    return
        except (OSError, ValueError):  # the reader hears of it, too
            return

    # ---- in the event loop

    def _hand_on(self, message: list[Event] | Stats | Failed) -> None:
        if isinstance(message, Failed):
            self._fail(raised(message))
        elif isinstance(message, Stats):
            asked = self._asked.popleft()
            if not asked.done():
                asked.set_result(message.values)
        else:
            for event in message:
                has_ended = isinstance(event, Refused) or event.finish_reason is not None
                take = self._takers.pop(event.id, None) if has_ended else self._takers.get(event.id)
                if take is not None:  # else it was aborted
                    take(event)

    def _fail(self, error: FastKernelsError) -> None:
        self.failure = error
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(EngineEnded(str(error)))
        takers, self._takers = self._takers, {}
        for take in takers.values():
            take(None)
        self.on_failure()

    def _ended(self) -> FastKernelsError:
        self._process.join(1.0)
        code = self._process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return FastKernelsError(f"the engine process ended {how}: its last words are above")


def raised(message: Failed) -> FastKernelsError:
    """What another process could not raise here."""
    error = FastKernelsError(message.problem)
    error.exit_code = message.exit_code
    return error
