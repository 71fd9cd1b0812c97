"""How to continue a prompt: vLLM's names, with vLLM's meanings; and how one that comes without parameters is
continued: as the model's generation_config.json says.

The fields of that file are those that vLLM reads, and `do_sample: false`, which means greedy. The ids that
end a text come from the same file (`ModelSource.stop_ids`). Its other fields have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fastkernels.engine.core.checks import IS_SEED, is_integer, is_seed, is_within
from fastkernels.errors import FileFormatError, RequestError
from fastkernels.loader.weights import ModelSource

MAX_LOGPROBS = 1024
MAX_ANSWERS = 16384  # of one request
# Below it a temperature is 0: logits divided by it would overflow float32.
LEAST_TEMPERATURE = 1e-5
# Far above any use, and finite in float32.
MOST_TEMPERATURE = 1e6


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt. Raises RequestError, which names the parameter; what vLLM has and is not here
    is refused by its name, too.

    temperature: 0 is greedy (ties to the lowest id). top_k: 0 or -1 is off. top_p: 1 is off. ignore_eos: only
    the length and `stop_token_ids` end the request. seed: with it the text depends on nothing but the
    request. stop: strings that end it (need a tokenizer). include_stop_str_in_output: the text ends with the
    stop string, or with the text of the stop token, which are cut from it otherwise. logprobs: record that
    many best log-probabilities at each position, of the model's own distribution. prompt_logprobs: the same
    for the tokens of the prompt.

    max_tokens: None goes on to the model's length. min_tokens: so many tokens come before any stop: ids that
    would stop are not sampled, strings are not looked for. min_p: allows ids at least min_p times as probable
    as the best one. presence_penalty, frequency_penalty: taken off a logit once for an id in the output, and
    once for each time. repetition_penalty: divides a positive logit, multiplies a negative one, of ids in
    prompt or output. n: answers to the prompt; answer i is that of a request of its own with the seed
    `seed` + i, and a greedy request has one answer. detokenize: False makes no text of the tokens; stop
    strings need it. skip_special_tokens: special tokens have no text.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int | None = 16
    ignore_eos: bool = False
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    logprobs: int | None = None
    min_p: float = 0.0
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    detokenize: bool = True
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __new__(cls, *_: Any, **given: Any) -> SamplingParams:
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in given if name not in known]:
            raise RequestError(f"SamplingParams takes no {', '.join(unknown)}; it takes {', '.join(known)}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, (is_met, rule) in self._rules().items():
            if not is_met:
                raise RequestError(f"{name}={getattr(self, name)!r}: must be {rule}")

    def _rules(self) -> dict[str, tuple[bool, str]]:
        """For each parameter whether its rule is met, and the rule in words."""
        are_answers = is_integer(self.n) and 1 <= self.n <= MAX_ANSWERS
        last = self.n - 1 if are_answers else 0
        is_valid_seed = self.seed is None or (is_seed(self.seed) and is_seed(self.seed + last))
        listed = isinstance(self.stop, (str, list, tuple)) or self.stop is None
        are_stops = listed and all(isinstance(stop, str) and stop for stop in self.stop_strings)
        are_ids = self.stop_token_ids is None or (
            isinstance(self.stop_token_ids, (list, tuple))
            and all(is_integer(i) and i >= 0 for i in self.stop_token_ids)
        )
        most = self.max_tokens
        is_most = most is None or (is_integer(most) and most >= 1)
        is_least = is_integer(self.min_tokens) and self.min_tokens >= 0
        is_least = is_least and (most is None or not is_most or self.min_tokens <= most)
        penalty = "a number from -2 to 2"
        return {
            "temperature": (
                is_within(self.temperature, 0, MOST_TEMPERATURE),
                f"a finite number, at least 0 and at most {MOST_TEMPERATURE:.0f}",
            ),
            "top_p": (is_within(self.top_p, 0, 1) and self.top_p > 0, "a number above 0 and at most 1"),
            "top_k": (is_integer(self.top_k) and self.top_k >= -1, "an integer of at least 0 (0 or -1: off)"),
            "max_tokens": (is_most, "an integer of at least 1, or None"),
            **{
                name: (isinstance(getattr(self, name), bool), "True or False")
                for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
            },
            "seed": (is_valid_seed, f"{IS_SEED} or None, and so with n - 1 added"),
            "stop": (are_stops, "a string that is not empty, or a list of them"),
            "stop_token_ids": (are_ids, "a list of token ids"),
            "logprobs": _are_logprobs(self.logprobs),
            "prompt_logprobs": _are_logprobs(self.prompt_logprobs),
            "min_p": (is_within(self.min_p, 0, 1), "a number from 0 to 1"),
            "min_tokens": (is_least, "an integer from 0 to max_tokens"),
            "presence_penalty": (is_within(self.presence_penalty, -2, 2), penalty),
            "frequency_penalty": (is_within(self.frequency_penalty, -2, 2), penalty),
            "repetition_penalty": (
                is_within(self.repetition_penalty, 0.01, 100),
                "a number from 0.01 to 100 (1: off)",
            ),
            "detokenize": (
                isinstance(self.detokenize, bool) and (self.detokenize or not self.stop),
                "True or False, and True with stop strings",
            ),
            "n": (
                are_answers and (self.n == 1 or not self.is_greedy),
                f"an integer from 1 to {MAX_ANSWERS}, and 1 with temperature 0, where all answers are equal",
            ),
        }

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def is_greedy(self) -> bool:
        return self.temperature < LEAST_TEMPERATURE

    @property
    def is_filtered(self) -> bool:
        """Whether top-k or top-p takes part in the choice; a greedy choice is inside every such set."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1)

    @property
    def is_penalised(self) -> bool:
        """Whether every choice of this request needs other logits than the model's (`shaping.py`)."""
        has_penalty = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return bool(has_penalty) or (self.min_p > 0 and not self.is_greedy)


def _are_logprobs(count: Any) -> tuple[bool, str]:
    is_met = count is None or (is_integer(count) and 0 <= count <= MAX_LOGPROBS)
    return is_met, f"None or an integer from 0 to {MAX_LOGPROBS}"


# Fields of the file, and the parameters that they are defaults of.
FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_params(source: ModelSource) -> SamplingParams:
    """SamplingParams with what the file says; a FileFormatError names the field that is wrong."""
    file, found = source.generation
    given: dict[str, Any] = {}
    for field, name in FIELDS.items():
        if found.get(field) is not None:
            given[name] = found[field]
            try:
                SamplingParams(**{name: found[field]})
            except RequestError as error:
                raise FileFormatError(file, field, str(error)) from error
    if not isinstance(does_sample := found.get("do_sample"), bool | None):
        raise FileFormatError(file, "do_sample", f"{does_sample!r:.60}: must be true or false")
    if does_sample is False:
        given["temperature"] = 0.0
    return SamplingParams(**given)
