"""From what a caller gives to requests that can be served; a RequestError says what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fastkernels.engine.core.checks import Errors
from fastkernels.engine.core.memory import Limits
from fastkernels.engine.core.request import Logprobs, Request
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.scheduler import Scheduler
from fastkernels.engine.core.shaping import MOST_MASKED
from fastkernels.engine.media.beside import Beside, Brought
from fastkernels.engine.media.text import Text
from fastkernels.engine.programs.program import Tokens
from fastkernels.errors import RequestError

Prompt = str | Sequence[int] | Mapping[str, Any]
_PROMPT_KEYS = ("prompt", "prompt_token_ids", "multi_modal_data")
Asked = tuple[Tokens, Brought | None]  # what a request needs, and what it brings


@dataclass
class Intake:
    """Knows what the model and the cache can hold, and fills in what a caller left open."""

    text: Text
    vocabulary: int
    limits: Limits
    scheduler: Scheduler
    stop_ids: tuple[int, ...]  # end of sequence
    defaults: SamplingParams  # of requests that come without parameters
    seeds: np.random.Generator  # for requests without a seed
    beside: Beside | None = None  # what the model takes beside ids

    def asked(
        self,
        prompts: list[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        forced: Sequence[Sequence[int]] | None,
        errors: Errors,
    ) -> list[Asked | RequestError]:
        """Of each prompt its checked need and what it brings. Of what cannot be served: with "raise" a
        RequestError that names the first, with "return" one in the place of each."""
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.defaults] * len(prompts)
        for name, given in (("sampling_params", params), ("forced", forced)):
            if not isinstance(given, (list, tuple, np.ndarray, type(None))):
                raise RequestError(f"{name} must be one for each prompt, in a list: {given!r:.60}")
            if given is not None and len(given) != len(prompts):
                raise RequestError(f"{len(given)} {name} for {len(prompts)} prompts")
        asked: list[Asked | RequestError] = []
        for index, (prompt, sampling) in enumerate(zip(prompts, params)):
            try:
                asked.append(self.need(prompt, sampling, None if forced is None else forced[index]))
            except RequestError as error:
                if errors == "raise":
                    raise RequestError(f"request {index}: {error}") from error
                asked.append(error)
        return asked

    def need(
        self, prompt: Prompt, sampling: SamplingParams | None = None, forced: Sequence[int] | None = None
    ) -> Asked:
        """A checked need, and what comes before it; a RequestError says why the request cannot be served."""
        sampling = self.defaults if sampling is None else sampling
        if not isinstance(sampling, SamplingParams):
            raise RequestError(f"sampling_params must be SamplingParams, not {sampling!r:.60}")
        self.text.require(sampling)
        ids, brought = self._beside(self._ids(prompt), prompt)
        need = Tokens("lm", ids, sampling, None if forced is None else _integers(forced))
        self.check(need)
        reach = len(ids) + self._max_tokens(need) + (0 if brought is None else brought.shift)
        if reach > self.limits.max_len:
            raise RequestError(
                f"positions up to {reach} behind the prompt's media: max_model_len is {self.limits.max_len}. "
                "Lower max_tokens, or give shorter media"
            )
        return need, brought

    def _beside(self, ids: list[int], prompt: Prompt) -> tuple[list[int], Brought | None]:
        given = prompt.get("multi_modal_data") if isinstance(prompt, Mapping) else None
        if self.beside is not None:
            return self.beside.take(ids, given)
        if given is not None:
            kinds = " and no ".join(map(str, given)) if isinstance(given, Mapping) else "media"
            raise RequestError(f"this model takes no {kinds or 'media'}")
        return ids, None

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, Mapping):
            if unknown := [name for name in prompt if name not in _PROMPT_KEYS]:
                known = ", ".join(_PROMPT_KEYS)
                raise RequestError(f"a prompt dictionary takes {known}, not {', '.join(map(repr, unknown))}")
            if "prompt_token_ids" in prompt:
                return _integers(prompt["prompt_token_ids"])
            if prompt.get("prompt") is None:
                raise RequestError("a prompt dictionary needs prompt (text or token ids) or prompt_token_ids")
            prompt = prompt["prompt"]
        return self.text.encode(prompt) if isinstance(prompt, str) else _integers(prompt)

    def check(self, need: Tokens) -> None:
        """Refuse what the engine can never serve; a RequestError says why."""
        for name, ids in (("the prompt", need.tokens), ("forced", need.forced)):
            if ids is not None and not ids:
                raise RequestError(f"{name} is empty")
            if ids is not None and (min(ids) < 0 or max(ids) >= self.vocabulary):
                span = f"ids from {min(ids)} to {max(ids)}"
                raise RequestError(f"{name} has {span}; the vocabulary has 0..{self.vocabulary - 1}")
        length = len(need.tokens) + (1 if need.forced is None else len(need.forced))
        if length > self.limits.max_len:
            raise RequestError(
                f"{len(need.tokens)} prompt tokens leave no room for "
                f"{length - len(need.tokens)} more: max_model_len is {self.limits.max_len}"
            )
        self._check_stops(need.sampling)
        if need.sampling.stop_strings and self.text.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this model has none: use stop_token_ids")
        grown = len(need.tokens) + self._max_tokens(need)
        if not self.scheduler.fits(grown):
            blocks = ", ".join(str(group.num_blocks - 1) for group in self.scheduler.cache.groups)
            raise RequestError(
                f"{len(need.tokens)} prompt tokens and {self._max_tokens(need)} more do not fit the cache of "
                f"{blocks} blocks of {self.limits.block_size} tokens: raise num_kv_cache_blocks"
            )

    def _check_stops(self, sampling: SamplingParams) -> None:
        for stop in sampling.stop_token_ids or ():
            if stop >= self.vocabulary:
                raise RequestError(f"stop_token_ids has {stop}; the vocabulary has 0..{self.vocabulary - 1}")
        masked = len(self._masked_ids(sampling))
        if masked > MOST_MASKED:
            raise RequestError(f"min_tokens can hold back {MOST_MASKED} stop tokens, not {masked}")

    def _max_tokens(self, need: Tokens) -> int:
        if need.forced is not None:
            return len(need.forced)
        room = self.limits.max_len - len(need.tokens)
        return room if need.sampling.max_tokens is None else min(need.sampling.max_tokens, room)

    def _masked_ids(self, sampling: SamplingParams) -> tuple[int, ...]:
        """What is not to be sampled before min_tokens: end of sequence too where it would not stop."""
        if not sampling.min_tokens:
            return ()
        ids = dict.fromkeys([*(sampling.stop_token_ids or ()), *self.stop_ids])
        return tuple(i for i in ids if i < self.vocabulary)

    def make_request(self, serial: int, need: Tokens) -> Request:
        self.check(need)
        params, stops = need.sampling, frozenset[int]()
        is_free = need.forced is None
        if is_free:
            stops = frozenset(params.stop_token_ids or ()).union(() if params.ignore_eos else self.stop_ids)
        scores: list[Logprobs | None] = [None] * len(need.tokens)
        is_read = need.on_token is not None or (is_free and bool(params.stop_strings))
        return Request(
            serial,
            need.tokens,
            params,
            seed=params.seed if params.seed is not None else int(self.seeds.integers(2**63)),
            max_tokens=self._max_tokens(need),
            stop_ids=stops,
            forced=need.forced,
            index=need.index,
            prompt_logprobs=None if params.prompt_logprobs is None else scores,
            on_token=need.on_token,
            source=need.source,
            splice=need.splice,
            masked_ids=self._masked_ids(params) if is_free else (),
            transcript=self.text.transcript(need.tokens, params, is_free) if is_read else None,
        )


def text_of(prompt: Prompt) -> str | None:
    """What a caller gave as text."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return text if isinstance(text, str) else None


def as_list(prompts: Any) -> list[Any]:
    """One prompt or several, as a list of prompts: a list of integers is one prompt."""
    if isinstance(prompts, (str, bytes, Mapping)):  # bytes would pass for token ids
        return [prompts]
    if not isinstance(prompts, Iterable) or getattr(prompts, "ndim", 1) == 0:
        raise RequestError(f"prompts are text or lists of token ids, not {prompts!r:.60}")
    listed = list(prompts)
    return [listed] if listed and isinstance(listed[0], (int, np.integer)) else listed


def _integers(values: Any) -> list[int]:
    """Token ids as Python integers."""
    ids: Any
    try:
        ids = np.asarray(values.tolist() if isinstance(values, Tensor) else values)
    except (ValueError, TypeError, RuntimeError):  # lists of different lengths, tensors without values
        ids = np.zeros((0, 0), np.int64)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise RequestError(
            f"a prompt is text or a list of token ids, and token ids must be integers: {values!r:.60}"
        )
    return ids.tolist()
