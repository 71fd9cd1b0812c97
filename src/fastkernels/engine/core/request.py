"""What a caller asks for and gets back (vLLM's names), and the engine's own record of a request."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from torch import Tensor

from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.splice import Splice
from fastkernels.engine.core.transcript import Transcript

# Stop ids that are compared for all rows at once. A request with more of them is looked at alone: as wide an
# array would slow every step of all.
MOST_STOPS = 8


@dataclass(slots=True)
class Logprob:
    """Of one token at one position. rank: 1 is the most probable. decoded_token: its text as it reads behind
    another token; None where no text is made."""

    logprob: float
    rank: int
    decoded_token: str | None = None


Logprobs = dict[int, Logprob]  # by token id, best first; the token that is there is always among them


@dataclass(slots=True)
class CompletionOutput:
    """One continuation. logprobs[i]: before position i was chosen, the chosen token and the best ones.

    For a forced request token_ids[i] is what the model chose at position i; the next input was forced[i] all
    the same.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None  # "stop" or "length"; None: it goes on
    logprobs: list[Logprobs] | None = None
    stop_reason: int | str | None = None  # the stop token or string that ended it; None for end of sequence
    cumulative_logprob: float | None = None  # of all tokens so far, where logprobs are asked for


@dataclass(slots=True)
class RequestOutput:
    """A finished request; or, of a streamed one, what is new of one answer since the last output."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True  # all answers
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache
    # Where asked for, of each token of the prompt but the first; in a stream in the first piece of answer 0.
    prompt_logprobs: list[Logprobs | None] | None = None


@dataclass(eq=False, slots=True)
class Request:
    """The engine's record of one answer to a prompt; `serial` is unique in an engine and says whose a sampled
    id is."""

    serial: int
    prompt: list[int]
    sampling: SamplingParams
    seed: int
    max_tokens: int
    stop_ids: Collection[int] = ()
    forced: list[int] | None = None
    index: int = 0  # among the answers to its prompt
    on_token: Callable[[Request], None] | None = None  # called after each step that gave it a token
    masked_ids: tuple[int, ...] = ()  # not sampled before min_tokens
    output: list[int] = field(default_factory=list)  # complete while it waits, is watched, or has finished
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs | None] | None = None  # by position, as far as the host knows them
    digests: list[bytes] = field(default_factory=list)  # of its first blocks (prefix_cache.py)
    num_cached: int | None = None  # tokens found in the prefix cache when it was first admitted
    inflight: int = 0  # samples launched before a preemption, not yet back
    finish_reason: str | None = None  # "stop", "length" or "abort"
    stop_token: int | None = None  # the stop id that ended it
    source: Tensor | None = None  # encoder states [S, D] for its layers, while it is not finished
    splice: Splice | None = None  # what media put into its prompt, while it is not finished
    transcript: Transcript | None = None  # its text so far, where somebody reads it as it grows

    @property
    def limit(self) -> int:
        """Positions of the prompt and of the longest continuation."""
        return len(self.prompt) + self.max_tokens

    @property
    def known(self) -> list[int]:
        """The ids that the device's token table holds at admission."""
        return self.prompt + (self.output if self.forced is None else self.forced)

    @property
    def shift(self) -> int:
        """The position of a token behind all media, less its place."""
        return 0 if self.splice is None else self.splice.shift

    def release(self) -> None:
        """Give up what lies on the device for it: it has ended."""
        self.source = self.splice = None

    @property
    def text_ids(self) -> list[int]:
        """The output whose text counts: that of a stop token does only where it is asked for."""
        keeps = self.stop_token is None or self.sampling.include_stop_str_in_output
        return self.output if keeps else self.output[:-1]

    @property
    def stop_reason(self) -> int | str | None:
        """The stop string or the stop token that the caller named, if one ended it."""
        if self.stop_token in (self.sampling.stop_token_ids or ()):
            return self.stop_token
        return None if self.transcript is None else self.transcript.stop

    @property
    def runs_to_its_limit(self) -> bool:
        """Whether no token and no text can end it early."""
        return not self.stop_ids and not self.sampling.stop

    @property
    def is_watched(self) -> bool:
        """Whether the host looks at every token: log-probabilities, stop strings, many stop ids or a
        reader."""
        is_read = self.transcript is not None or self.on_token is not None
        return is_read or self.sampling.logprobs is not None or len(self.stop_ids) > MOST_STOPS
