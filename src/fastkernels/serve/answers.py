"""The answers to one HTTP request: from token events to text, as they grow or whole.

Text is made here as the engine makes it for LLM.generate: the same records (Request), transcripts and
readers. An answer that a stop string ends is aborted in the engine. Nobody waits for a reader that is slow:
what came meanwhile is one piece.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastkernels.engine.core.request import Request, RequestOutput
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.media.outputs import Reader
from fastkernels.engine.media.text import Text
from fastkernels.errors import RequestError
from fastkernels.serve.engine_client import EngineClient, EngineEnded, Event
from fastkernels.serve.messages import Refused
from fastkernels.serve.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as ids, and the media beside it."""

    ids: list[int]
    media: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt: int
    completion: int
    cached: int


class _Answer:
    """One answer: the record of its tokens, and what of it was not read yet."""

    def __init__(self, request: Request, reader: Reader) -> None:
        self.request, self.reader = request, reader
        self.id = ""  # in the engine
        self.num_prompt, self.num_cached = len(request.prompt), 0
        self.has_news = False
        self.began = self.last = time.perf_counter()

    @property
    def has_ended(self) -> bool:
        return self.request.finish_reason is not None

    def grow(self, token_ids: list[int], logprobs: Sequence[Any] | None, finish_reason: str | None) -> None:
        request, transcript = self.request, self.request.transcript
        for index, token in enumerate(token_ids):
            request.output.append(token)
            if logprobs is not None:
                request.logprobs.append(logprobs[index])
            is_stop_token = finish_reason == "stop" and index == len(token_ids) - 1
            if is_stop_token:
                request.stop_token = token
            elif transcript is not None and transcript.read(request.output):
                finish_reason = "stop"
                break
        if finish_reason is not None:
            if transcript is not None:
                transcript.close(request.text_ids)
                finish_reason = "stop" if transcript.stop is not None else finish_reason
            request.finish_reason = finish_reason
        self.has_news = True


class Answers:
    """`n` answers to each prompt, in the order of the prompts. Always closed by who made it."""

    def __init__(
        self,
        engine: EngineClient,
        text: Text,
        metrics: Metrics,
        prompts: Sequence[Asked],
        sampling: SamplingParams,
        streamed: bool,
    ) -> None:
        """RequestError for stop strings without a tokenizer; EngineEnded."""
        self._engine, self._metrics = engine, metrics
        self._changed = asyncio.Event()
        self._problem: Exception | None = None
        self.prompts = prompts
        self._answers: list[_Answer] = []
        if sampling.stop_strings:
            text.required("stop")
        is_read = streamed or bool(sampling.stop_strings)
        for prompt in prompts:
            reader = Reader("", None, text, sampling.n)
            for index in range(sampling.n):
                seed = None if sampling.seed is None else sampling.seed + index
                own = dataclasses.replace(sampling, n=1, seed=seed)
                transcript = text.transcript(prompt.ids, own) if is_read else None
                request = Request(0, prompt.ids, own, 0, 0, index=index, transcript=transcript)
                self._answers.append(_Answer(request, reader))
        try:
            for place, answer in enumerate(self._answers):
                self._ask(answer, prompts[place // sampling.n], is_read)
        except BaseException:
            self.close()
            raise

    async def begun(self) -> None:
        """Wait for the first tokens. RequestError where the engine refuses a prompt, EngineEnded."""
        while not any(answer.has_news for answer in self._answers):
            await self._wait()

    async def pieces(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """(place among all answers, what is new of it), until all have ended."""
        while True:
            for place, answer in enumerate(self._answers):
                if answer.has_news:
                    answer.has_news = False
                    yield place, answer.reader.news(answer.request)
            self._require_no_problem()
            if all(answer.has_ended and not answer.has_news for answer in self._answers):
                return
            await self._wait()

    async def whole(self) -> list[RequestOutput]:
        """Of each prompt its answers."""
        while not all(answer.has_ended for answer in self._answers):
            await self._wait()
        self._require_no_problem()
        n = len(self._answers) // len(self.prompts)
        groups = (self._answers[at : at + n] for at in range(0, len(self._answers), n))
        return [group[0].reader.whole([answer.request for answer in group]) for group in groups]

    @property
    def usage(self) -> Usage:
        n = len(self._answers) // len(self.prompts)
        firsts = self._answers[::n]
        return Usage(
            sum(answer.num_prompt for answer in firsts),
            sum(len(answer.request.output) for answer in self._answers),
            sum(answer.num_cached for answer in firsts),
        )

    def close(self) -> None:
        """Abort what has not ended."""
        for answer in self._answers:
            if answer.id and not answer.has_ended:
                self._engine.abort(answer.id)
                self._metrics.ended("abort", answer.num_prompt, len(answer.request.output))
                answer.request.finish_reason = "abort"

    async def _wait(self) -> None:
        """Until something is new, or a problem is there."""
        if self._problem is None:
            await self._changed.wait()
            self._changed.clear()
        self._require_no_problem()

    def _require_no_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _ask(self, answer: _Answer, prompt: Asked, is_read: bool) -> None:
        def take(event: Event | None) -> None:
            self._take(answer, event)

        to_engine = dataclasses.replace(answer.request.sampling, detokenize=False, stop=None)
        given: Any = {"prompt_token_ids": prompt.ids}
        if prompt.media is not None:
            given["multi_modal_data"] = prompt.media
        answer.id = self._engine.add(given, to_engine, is_read, take)

    def _take(self, answer: _Answer, event: Event | None) -> None:
        self._changed.set()
        if event is None or isinstance(event, Refused):
            answer.request.finish_reason = "abort"
            self._metrics.ended("refused" if event else "failed", answer.num_prompt, 0)
            failed = EngineEnded(str(self._engine.failure))
            self._problem = self._problem or (failed if event is None else RequestError(event.problem))
            return
        answer.num_prompt, answer.num_cached = event.num_prompt, event.num_cached
        is_first, now = not answer.request.output, time.perf_counter()
        answer.grow(event.token_ids, event.logprobs, event.finish_reason)
        if answer.request.transcript is not None:
            self._metrics.grown(is_first, now - answer.last)
        answer.last = now
        if answer.has_ended:
            self._engine.abort(answer.id)  # it may not know of a stop string
            reason, length = str(answer.request.finish_reason), len(answer.request.output)
            self._metrics.ended(reason, answer.num_prompt, length, now - answer.began)
