"""What a caller asks for and gets back (vLLM's names), and the engine's own record of a request."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fastkernels.errors import RequestError

MAX_LOGPROBS = 1024
_SEED_RANGE = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt.

    temperature: 0 is greedy (ties to the lowest id). top_k: 0 or -1 is off. top_p: 1 is off. ignore_eos: only
    the length and `stop_token_ids` end the request. seed: with it the text depends on nothing but the
    request. stop: strings that end it (need a tokenizer; cut from the text). logprobs: record that many best
    log-probabilities at each position.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    ignore_eos: bool = False
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        is_seed = self.seed is None or (_integer(self.seed) and self.seed in _SEED_RANGE)
        are_stops = all(isinstance(stop, str) and stop for stop in self.stop_strings)
        are_ids = all(_integer(i) and i >= 0 for i in self.stop_token_ids or ())
        is_count = self.logprobs is None or (_integer(self.logprobs) and 0 <= self.logprobs <= MAX_LOGPROBS)
        rules = {
            "temperature": (_finite(self.temperature) and self.temperature >= 0, "finite and at least 0"),
            "top_p": (_finite(self.top_p) and 0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (_integer(self.top_k) and self.top_k >= -1, "an integer of at least 0 (0 or -1: off)"),
            "max_tokens": (_integer(self.max_tokens) and self.max_tokens >= 1, "an integer of at least 1"),
            "seed": (is_seed, "a 64-bit integer or None"),
            "stop": (are_stops, "a string that is not empty, or a list of them"),
            "stop_token_ids": (are_ids, "a list of token ids"),
            "logprobs": (is_count, f"None or an integer from 0 to {MAX_LOGPROBS}"),
        }
        for name, (is_met, rule) in rules.items():
            if not is_met:
                raise RequestError(f"{name}={getattr(self, name)!r}: must be {rule}")

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def is_filtered(self) -> bool:
        """Whether top-k or top-p takes part in the choice; a greedy choice is inside every such set."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(slots=True)
class CompletionOutput:
    """One continuation. logprobs[i] maps token ids to log-probabilities before position i was chosen, best
    first.

    For a forced request token_ids[i] is what the model chose at position i; the next input was forced[i] all
    the same.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None  # "stop" or "length"
    logprobs: list[dict[int, float]] | None = None


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True


@dataclass(eq=False, slots=True)
class Request:
    """The engine's record of a request; `serial` is unique in an engine and says whose a sampled id is."""

    serial: int
    prompt: list[int]
    sampling: SamplingParams
    seed: int
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    forced: list[int] | None = None
    output: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    inflight: int = 0  # samples launched before a preemption, not yet back
    finish_reason: str | None = None
    stop_text: str | None = None  # the stop string that ended it

    @property
    def limit(self) -> int:
        """Positions of the prompt and of the longest continuation."""
        return len(self.prompt) + self.max_tokens

    @property
    def known(self) -> list[int]:
        """The ids that the device's token table holds at admission."""
        return self.prompt + (self.output if self.forced is None else self.forced)

    @property
    def is_watched(self) -> bool:
        """Whether the host looks at every token: log-probabilities or stop strings."""
        return self.sampling.logprobs is not None or bool(self.sampling.stop_strings)
