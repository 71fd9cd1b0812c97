"""What clients may ask, and the sampling parameters that it means.

Names are OpenAI's; those behind them are vLLM's. A name that is not here is refused, except those that say
nothing about the answer.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, StrictInt, ValidationError
from pydantic_core import from_json

from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.serve.errors import ApiError

_IDLE = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
MOST_TOP_LOGPROBS = 20  # of a chat
Ids = list[StrictInt]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class _Body(BaseModel, ABC):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: StrictInt | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: StrictInt | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # vLLM's
    top_k: StrictInt | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: StrictInt | None = None
    stop_token_ids: Ids | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool = False

    def sampling(self, defaults: SamplingParams, most: int | None) -> SamplingParams:
        """RequestError names what is out of range. most: tokens, where the body does not say."""
        given = {
            name: value
            for name in SamplingParams.__dataclass_fields__
            if name != "logprobs" and (value := getattr(self, name, None)) is not None
        }
        most = self.most_tokens if self.most_tokens is not None else most
        return dataclasses.replace(
            defaults, **{**given, "max_tokens": most, "logprobs": self.num_logprobs, "detokenize": True}
        )

    @property
    @abstractmethod
    def most_tokens(self) -> int | None: ...

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None: ...

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(_Body):
    """multi_modal_data: beside each prompt, {"image": [data URL, ...]} (media.py)."""

    prompt: str | Ids | list[str] | list[Ids]
    max_tokens: StrictInt | None = None
    logprobs: StrictInt | None = None
    echo: Literal[False] = False
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None
    multi_modal_data: dict[str, Any] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        is_one = isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int))
        return [self.prompt] if is_one else list(self.prompt)  # pyright: ignore[reportReturnType]

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class ChatBody(_Body):
    messages: list[dict[str, Any]]
    max_tokens: StrictInt | None = None
    max_completion_tokens: StrictInt | None = None
    logprobs: bool | None = None
    top_logprobs: StrictInt | None = None
    # vLLM's
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MOST_TOP_LOGPROBS:
            what = f"top_logprobs={self.top_logprobs}: must be from 0 to {MOST_TOP_LOGPROBS}"
            raise ApiError(400, what, param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


_Kind = TypeVar("_Kind", bound=_Body)


def read(kind: type[_Kind], content: bytes) -> _Kind:
    """The body; ApiError names the field that is wrong."""
    try:
        given = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise ApiError(400, f"the body is a JSON object, not {type(given).__name__}")
    try:
        return kind.model_validate({name: value for name, value in given.items() if name not in _IDLE})
    except ValidationError as error:
        raise _told(kind, error) from None


def _told(kind: type[_Body], error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    place = first["loc"]
    param = str(place[0]) if place else None
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(kind.model_fields))
        return ApiError(400, f"'{param}' is not served here. Known: {known}", param=param)
    where = ".".join(str(part) for part in place)
    return ApiError(400, f"{where or 'the body'}: {first['msg']}", param=param)
