"""What passes between the HTTP process and the engine process. All of it is pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastkernels.engine.core.request import Logprobs
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.media.intake import Prompt

# ---- to the engine


@dataclass(slots=True)
class Add:
    """One answer to a prompt of ids. streamed: its tokens come as they are sampled, not at the end alone."""

    id: str
    prompt: Prompt
    sampling: SamplingParams
    streamed: bool


@dataclass(slots=True)
class Abort:
    id: str


@dataclass(slots=True)
class AskStats:
    """Answered by Stats, in the order of the questions."""


# ---- from the engine


@dataclass(slots=True)
class Ready:
    """The first message of an engine that is loaded."""

    model: str
    folder: str | None  # with the tokenizer
    vocabulary: int
    max_len: int  # positions of prompt and answer
    defaults: SamplingParams  # of the model's generation_config.json
    max_tokens: int | None  # of an answer, as the same file says


@dataclass(slots=True)
class Grown:
    """New tokens of one answer. finish_reason: "stop" (a stop token is the last one), "length", or None."""

    id: str
    num_prompt: int  # tokens, those of media included
    num_cached: int
    token_ids: list[int]
    logprobs: list[Logprobs] | None
    finish_reason: str | None


@dataclass(slots=True)
class Refused:
    """The engine cannot serve it; nothing else comes for this id."""

    id: str
    problem: str


@dataclass(slots=True)
class Stats:
    values: dict[str, Any]


@dataclass(slots=True)
class Failed:
    """The last message of an engine that cannot go on."""

    problem: str
    exit_code: int
