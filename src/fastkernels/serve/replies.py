"""Answers as OpenAI's clients read them: whole, and as chunks of a stream.

A model without a tokenizer has no text: choices carry `token_ids` beside an empty text, as they do for
`return_token_ids`, and a token is named `token_id:7`.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastkernels.engine.core.request import CompletionOutput, Logprobs, RequestOutput
from fastkernels.serve.answers import Usage


class Replies(ABC):
    """Of one request. Subclasses say what a choice looks like."""

    whole_object = chunk_object = prefix = ""

    def __init__(self, model: str, num_logprobs: int | None, with_ids: bool, counts_usage: bool) -> None:
        """with_ids: choices carry their token ids. counts_usage: a stream ends with the usage."""
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._num_logprobs, self._with_ids, self._counts_usage = num_logprobs, with_ids, counts_usage
        self._began: set[int] = set()

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> dict[str, Any]:
        answers = [answer for output in outputs for answer in output.outputs]
        choices = [self._choice(place, answer, self._said(answer)) for place, answer in enumerate(answers)]
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": _usage(usage)}

    def chunk(self, place: int, output: RequestOutput) -> dict[str, Any]:
        (answer,) = output.outputs
        choice = self._choice(place, answer, self._news(answer, place not in self._began))
        self._began.add(place)
        return self._chunk([choice], None)

    def last(self, usage: Usage) -> dict[str, Any] | None:
        """A chunk behind all choices."""
        return self._chunk([], _usage(usage)) if self._counts_usage else None

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        last = {"usage": usage} if self._counts_usage else {}
        return {**self._head, "object": self.chunk_object, "choices": choices, **last}

    def _choice(self, place: int, answer: CompletionOutput, said: dict[str, Any]) -> dict[str, Any]:
        logprobs = None
        if self._num_logprobs is not None and answer.logprobs is not None:
            logprobs = self._logprobs(place, answer.token_ids, answer.logprobs, self._num_logprobs)
        ids = {"token_ids": answer.token_ids} if self._with_ids else {}
        ended = {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
        return {"index": place, **said, "logprobs": logprobs, **ended, **ids}

    @abstractmethod
    def _said(self, answer: CompletionOutput) -> dict[str, Any]: ...

    @abstractmethod
    def _news(self, answer: CompletionOutput, is_first: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _logprobs(
        self, place: int, token_ids: Sequence[int], positions: Sequence[Logprobs], most: int
    ) -> dict[str, Any]: ...


class Completions(Replies):
    whole_object = chunk_object = "text_completion"
    prefix = "cmpl"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ends: Counter[int] = Counter()  # of the text of tokens, by place

    def _said(self, answer: CompletionOutput) -> dict[str, Any]:
        return {"text": answer.text}

    def _news(self, answer: CompletionOutput, is_first: bool) -> dict[str, Any]:
        return {"text": answer.text}

    def _logprobs(
        self, place: int, token_ids: Sequence[int], positions: Sequence[Logprobs], most: int
    ) -> dict[str, Any]:
        found: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token, at in zip(token_ids, positions):
            name = _name(token, at)
            found["tokens"].append(name)
            found["token_logprobs"].append(at[token].logprob)
            best = {_name(id, at): one.logprob for id, one in at.items() if id == token or one.rank <= most}
            found["top_logprobs"].append(best)
            found["text_offset"].append(self._ends[place])
            self._ends[place] += len(at[token].decoded_token or "")
        return found


class Chats(Replies):
    whole_object, chunk_object, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def _said(self, answer: CompletionOutput) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": answer.text, "refusal": None}}

    def _news(self, answer: CompletionOutput, is_first: bool) -> dict[str, Any]:
        return {"delta": {**({"role": "assistant"} if is_first else {}), "content": answer.text}}

    def _logprobs(
        self, place: int, token_ids: Sequence[int], positions: Sequence[Logprobs], most: int
    ) -> dict[str, Any]:
        content = [
            {
                **_scored(token, at),
                "top_logprobs": [_scored(id, at) for id, one in at.items() if one.rank <= most],
            }
            for token, at in zip(token_ids, positions)
        ]
        return {"content": content, "refusal": None}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _name(token: int, at: Logprobs) -> str:
    text = at[token].decoded_token
    return f"token_id:{token}" if text is None else text


def _scored(token: int, at: Logprobs) -> dict[str, Any]:
    """bytes: None of a token that is no whole character."""
    name = _name(token, at)
    is_whole = "\N{REPLACEMENT CHARACTER}" not in name
    return {"token": name, "logprob": at[token].logprob, "bytes": list(name.encode()) if is_whole else None}
