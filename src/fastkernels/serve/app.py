"""The routes: /v1/models, /v1/completions, /v1/chat/completions, /health, /metrics.

Every error has OpenAI's shape. A client that leaves takes its answers with it: they are aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.media.text import Text
from fastkernels.errors import RequestError
from fastkernels.serve import media
from fastkernels.serve.answers import Answers, Asked
from fastkernels.serve.bodies import ChatBody, CompletionBody, read
from fastkernels.serve.engine_client import EngineClient, EngineEnded
from fastkernels.serve.errors import ApiError
from fastkernels.serve.messages import Ready
from fastkernels.serve.metrics import CONTENT_TYPE, Metrics
from fastkernels.serve.replies import Chats, Completions, Replies

_LEFT = 499  # as nginx logs a client that left; nobody reads it
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Served:
    """name: of the model, as clients say it. max_body: bytes of a request. max_requests: answers that wait
    or run at once. api_key: what clients of /v1 must show, None for none. chat_template: in place of the
    tokenizer's; clients bring none, since one could run for ever."""

    name: str
    max_body: int
    max_requests: int
    api_key: str | None = None
    chat_template: str | None = None


class _Left(Exception):
    """The client closed its connection."""


def make_app(engine: EngineClient, ready: Ready, text: Text, served: Served) -> FastAPI:
    """An engine that is ready, behind HTTP. text: with the model's tokenizer, or none."""
    routes = _Routes(engine, ready, text, served)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.listen()
        yield

    app = FastAPI(title="fk serve", lifespan=lifespan, openapi_url=None)
    v1 = APIRouter(prefix="/v1", dependencies=[Depends(routes.require_key)])
    v1.get("/models")(routes.models)
    v1.post("/completions")(routes.completions)
    v1.post("/chat/completions")(routes.chat)
    app.include_router(v1)
    app.get("/health")(routes.health)
    app.get("/metrics")(routes.metrics)
    for kind, told in (
        (ApiError, lambda error: error),
        (RequestError, lambda error: ApiError(400, str(error))),
        (EngineEnded, lambda error: ApiError(503, str(error))),
        (HTTPException, lambda error: ApiError(error.status_code, str(error.detail))),
        (Exception, lambda error: ApiError(500, f"{type(error).__name__} in the server; see its output")),
    ):
        app.add_exception_handler(kind, _handler(told))
    for kind in (_Left, ClientDisconnect):  # the latter amid its body
        app.add_exception_handler(kind, lambda *_: Response(status_code=_LEFT))
    return app


def _handler(told: Callable[[Any], ApiError]) -> Any:
    async def handle(request: Request, error: Exception) -> Response:
        api = told(error)
        headers = {"connection": "close"} if api.status == 413 else None  # the rest of it is not read
        return JSONResponse(api.body, api.status, headers)

    return handle


class _Routes:
    def __init__(self, engine: EngineClient, ready: Ready, text: Text, served: Served) -> None:
        self._engine, self._ready, self._text, self._served = engine, ready, text, served
        self._metrics = Metrics()
        self._since = int(time.time())
        self._tokenizing = threading.Lock()  # tokenizers are no business of two threads at once

    async def require_key(self, request: Request) -> None:
        if self._served.api_key is None:
            return
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self._served.api_key}".encode()):
            raise ApiError(
                401, "the API key is missing or wrong: Authorization: Bearer KEY", code="invalid_api_key"
            )

    async def health(self) -> Response:
        if self._engine.failure is not None:
            raise EngineEnded(str(self._engine.failure))
        return Response()

    async def metrics(self) -> Response:
        stats = await self._engine.stats()
        return Response(self._metrics.text(self._engine.num_open, stats), media_type=CONTENT_TYPE)

    async def models(self) -> dict[str, Any]:
        card = {
            "id": self._served.name,
            "object": "model",
            "created": self._since,
            "owned_by": "fastkernels",
            "root": self._ready.model,
            "max_model_len": self._ready.max_len,
            "vocab_size": self._ready.vocabulary,
        }
        return {"object": "list", "data": [card]}

    async def completions(self, request: Request) -> Response:
        body = read(CompletionBody, await self._content(request))
        self._require_model(body.model)
        sampling = body.sampling(
            self._ready.defaults, self._ready.max_tokens or self._ready.defaults.max_tokens
        )

        def prompts() -> list[Asked]:
            data = None if body.multi_modal_data is None else media.multi_modal_data(body.multi_modal_data)
            with self._tokenizing:
                return [
                    Asked(self._text.encode(prompt) if isinstance(prompt, str) else prompt, data)
                    for prompt in body.prompts
                ]

        replies = Completions(self._served.name, body.num_logprobs, self._with_ids(body), body.includes_usage)
        return await self._answer(request, prompts, sampling, replies, body.stream)

    async def chat(self, request: Request) -> Response:
        body = read(ChatBody, await self._content(request))
        self._require_model(body.model)
        sampling = body.sampling(self._ready.defaults, self._ready.max_tokens)

        def prompts() -> list[Asked]:
            found: list[tuple[str, Any]] = []
            messages = [_message(message, found) for message in body.messages]
            options = {
                **(body.chat_template_kwargs or {}),
                "chat_template": self._served.chat_template,
                "add_generation_prompt": body.add_generation_prompt,
                "continue_final_message": body.continue_final_message,
            }
            with self._tokenizing:
                _, ids = self._text.conversation(messages, **options)
            return [Asked(ids, media.gathered(found) if found else None)]

        replies = Chats(self._served.name, body.num_logprobs, self._with_ids(body), body.includes_usage)
        return await self._answer(request, prompts, sampling, replies, body.stream)

    # ---- what both do

    async def _content(self, request: Request) -> bytes:
        """The body; ApiError as soon as it is longer than allowed."""
        content, most = bytearray(), self._served.max_body
        told = request.headers.get("content-length", "0")
        if told.isdecimal() and int(told) > most:
            raise ApiError(413, f"a body of {told} bytes; at most {most} are read", code="body_too_large")
        async for part in request.stream():
            content += part
            if len(content) > most:
                raise ApiError(413, f"a body of over {most} bytes", code="body_too_large")
        return bytes(content)

    def _require_model(self, name: str | None) -> None:
        if name is not None and name != self._served.name:
            what = f"the model {name!r} is not served here; {self._served.name!r} is"
            raise ApiError(404, what, param="model", code="model_not_found")

    def _with_ids(self, body: CompletionBody | ChatBody) -> bool:
        return body.return_token_ids or self._text.tokenizer is None

    async def _answer(
        self,
        request: Request,
        prompts: Callable[[], list[Asked]],
        sampling: SamplingParams,
        replies: Replies,
        streamed: bool,
    ) -> Response:
        asked = await asyncio.to_thread(prompts)  # tokenizing a long text takes a while
        wanted, most = len(asked) * sampling.n, self._served.max_requests
        if not asked:
            raise ApiError(400, "prompt: the list is empty", param="prompt")
        if self._engine.num_open + wanted > most:
            raise ApiError(
                429, f"{self._engine.num_open} answers are open, and {most} are the most: try later"
            )
        answers = Answers(self._engine, self._text, self._metrics, asked, sampling, streamed)
        stream = None
        try:
            if not streamed:
                outputs = await _unless_left(request, answers.whole())
                return JSONResponse(replies.whole(outputs, answers.usage))
            await _unless_left(request, answers.begun())
            stream = _Stream(answers, replies)
            return stream
        finally:
            if stream is None:
                answers.close()


class _Stream(StreamingResponse):
    """Server-sent events. However it ends, so do the answers."""

    def __init__(self, answers: Answers, replies: Replies) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(_events(answers, replies), media_type="text/event-stream", headers=headers)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


async def _events(answers: Answers, replies: Replies) -> AsyncIterator[str]:
    try:
        async for place, output in answers.pieces():
            yield _event(replies.chunk(place, output))
        if (last := replies.last(answers.usage)) is not None:
            yield _event(last)
    except RequestError as error:  # of a later prompt of the same body
        yield _event(ApiError(400, str(error)).body)
    except EngineEnded as error:
        yield _event(ApiError(503, str(error)).body)
    yield "data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


async def _unless_left(request: Request, answer: Awaitable[Result]) -> Result:
    """The answer, or _Left as soon as the client has left."""
    waiting = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise _Left
        return waiting.result()
    finally:
        waiting.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _message(message: dict[str, Any], found: list[tuple[str, Any]]) -> dict[str, Any]:
    """A message as chat templates take it; its media join `found`. Text in parts becomes one text, unless
    there are media between."""
    content = message.get("content")
    if "role" not in message or not isinstance(content, (str, list, type(None))):
        raise ApiError(
            400, "messages: a message has a role, and a content of text or parts", param="messages"
        )
    if not isinstance(content, list):
        return message
    parts = [media.part_of_chat(part) for part in content]
    if not any(parts):
        return {**message, "content": "\n".join(part["text"] for part in content)}
    found += filter(None, parts)
    marked = [given if part is None else {"type": part[0]} for given, part in zip(content, parts)]
    return {**message, "content": marked}
