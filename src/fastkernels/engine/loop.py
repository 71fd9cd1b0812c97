"""Requests that come and go: what a server builds on. No threads; each call returns at once or after a step.

loop.add_request([1, 2, 3], SamplingParams(), request_id="a", stream=True)
while loop.has_unfinished_requests():
    for output in loop.step(): ...          pieces of streamed requests, others when they have finished
loop.abort("a")                             in any state; its row and its blocks are free at once
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastkernels.engine.core.request import Request, RequestOutput
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.media.beside import Brought
from fastkernels.engine.media.intake import Intake, Prompt, text_of
from fastkernels.engine.media.outputs import Reader
from fastkernels.engine.programs.program import Engine, Tokens
from fastkernels.errors import RequestError, UsageError
from fastkernels.nn.program import Program


def language_model(need: Tokens, brought: Brought | None = None) -> Program:
    """The program of a language model: a need for each answer, behind the calls of what it brings."""
    if brought is not None:
        need = brought.added(need, (yield brought.calls))
    return (yield [_answer(need, index) for index in range(need.sampling.n)])


def _answer(need: Tokens, index: int) -> Tokens:
    """The need of one answer: a request of its own, of which the first looks at the prompt for all."""
    params = need.sampling
    seed = None if params.seed is None else params.seed + index
    scored = None if index else params.prompt_logprobs
    return replace(need, index=index, sampling=replace(params, n=1, seed=seed, prompt_logprobs=scored))


def refused(error: RequestError) -> Program:
    """The program of a request that cannot be served."""
    raise error
    yield


class Loop:
    def __init__(self, engine: Engine, intake: Intake) -> None:
        self.engine, self.intake = engine, intake
        self._readers: dict[int, Reader] = {}  # by the program's number
        self._numbers: dict[str, int] = {}  # request id -> number
        self._pieces: list[RequestOutput] = []
        self._next_id = 0

    def has_unfinished_requests(self) -> bool:
        return bool(self._numbers)

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        stream: bool = False,
    ) -> str:
        """Queue a request and return its id. Raises RequestError, which harms no other request."""
        if not self._numbers and not self.engine.is_idle:
            raise UsageError("add_request() cannot be called by a reader of generate(): wait for its end")
        request_id = self._unused_id() if request_id is None else request_id
        if request_id in self._numbers:
            raise RequestError(f"request_id={request_id!r}: a request of this name is not finished")
        need, brought = self.intake.need(prompt, sampling_params)
        reader = Reader(request_id, text_of(prompt), self.intake.text, need.sampling.n)
        if stream:

            def read(request: Request) -> None:
                self._pieces.append(reader.news(request))

            need = replace(need, on_token=read)
        number = self.engine.start(language_model(need, brought))
        self._readers[number], self._numbers[request_id] = reader, number
        return request_id

    def step(self) -> list[RequestOutput]:
        """Run one step of the engine, if there is anything to do. Each streamed request that got tokens has
        an output with these alone, each other one that finished its whole output.

        An exception is a failure of the engine: it ends all requests, and the loop can be used again.
        """
        if not self._numbers:
            return []
        try:
            return self._outputs(self.engine.step())
        except BaseException:
            self.engine.abandon()
            self._readers.clear()
            self._numbers.clear()
            self._pieces.clear()
            raise

    def _outputs(self, ended: list[tuple[int, Any]]) -> list[RequestOutput]:
        """What is new after a step in which these programs ended."""
        outputs, self._pieces = self._pieces, []
        for number, answers in ended:
            reader = self._readers.pop(number)
            del self._numbers[reader.request_id]
            if isinstance(answers, RequestError):
                raise AssertionError("a checked request was refused") from answers
            if answers[0].on_token is None:
                outputs.append(reader.whole(answers))
        return outputs

    def abort(self, request_id: str) -> bool:
        """End a request without another output; False if none has this name (it may have finished)."""
        number = self._numbers.pop(request_id, None)
        if number is None:
            return False
        del self._readers[number]
        self.engine.cancel(number)
        self._pieces = [piece for piece in self._pieces if piece.request_id != request_id]
        return True

    def _unused_id(self) -> str:
        while (name := str(self._next_id)) in self._numbers:
            self._next_id += 1
        self._next_id += 1
        return name
