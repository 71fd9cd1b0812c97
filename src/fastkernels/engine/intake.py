"""From what a caller gives to requests that can be served; a RequestError says what is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastkernels.engine.memory import Limits
from fastkernels.engine.program import Tokens
from fastkernels.engine.requests import Request, SamplingParams
from fastkernels.engine.scheduler import Scheduler
from fastkernels.engine.text import Text
from fastkernels.errors import RequestError

Prompt = str | Sequence[int] | Mapping[str, Any]


@dataclass
class Intake:
    """Knows what the model and the cache can hold, and fills in what a caller left open."""

    text: Text
    vocabulary: int
    limits: Limits
    scheduler: Scheduler
    stop_ids: tuple[int, ...]  # end of sequence
    seeds: np.random.Generator  # for requests without a seed

    def needs(
        self,
        prompts: list[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        forced: Sequence[Sequence[int]] | None,
    ) -> list[Tokens]:
        """One checked need for each prompt; a RequestError names the first that cannot be served."""
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        for name, given in (("sampling_params", params), ("forced", forced)):
            if given is not None and len(given) != len(prompts):
                raise RequestError(f"{len(given)} {name} for {len(prompts)} prompts")
        needs = []
        for index, (prompt, sampling) in enumerate(zip(prompts, params)):
            with named(index):
                ids = None if forced is None else [int(i) for i in forced[index]]
                needs.append(Tokens("lm", self._ids(prompt), sampling, ids))
                self.check(needs[-1])
        return needs

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.text.encode(prompt)
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" not in prompt:
                raise RequestError(
                    f"A prompt dictionary needs prompt_token_ids, not {', '.join(map(repr, prompt))}"
                )
            prompt = prompt["prompt_token_ids"]
        ids: Any
        try:
            ids = np.asarray(prompt)
        except ValueError:  # lists of different lengths
            ids = np.zeros((0, 0), np.int64)
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise RequestError(
                f"a prompt is text or a list of token ids, and token ids must be integers: {prompt!r:.60}"
            )
        return ids.tolist()

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
        if need.sampling.stop_strings and self.text.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this model has none: use stop_token_ids")
        grown = len(need.tokens) + self._max_tokens(need)
        if not self.scheduler.fits(grown):
            blocks = ", ".join(str(group.num_blocks - 1) for group in self.scheduler.cache.groups)
            raise RequestError(
                f"{len(need.tokens)} prompt tokens and {self._max_tokens(need)} more do not fit the cache of "
                f"{blocks} blocks of {self.limits.block_size} tokens: raise num_kv_cache_blocks"
            )

    def _max_tokens(self, need: Tokens) -> int:
        if need.forced is not None:
            return len(need.forced)
        return min(need.sampling.max_tokens, self.limits.max_len - len(need.tokens))

    def make_request(self, serial: int, need: Tokens) -> Request:
        self.check(need)
        params, stops = need.sampling, ()
        if need.forced is None:
            stops = tuple(params.stop_token_ids or ()) + (() if params.ignore_eos else self.stop_ids)
        seed = params.seed if params.seed is not None else int(self.seeds.integers(2**63))
        return Request(serial, need.tokens, params, seed, self._max_tokens(need), stops, need.forced)


def as_list(prompts: Any) -> list[Any]:
    """One prompt or several, as a list of prompts: a list of integers is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    listed = list(prompts)
    return [listed] if listed and isinstance(listed[0], (int, np.integer)) else listed


@contextlib.contextmanager
def named(index: int) -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        raise RequestError(f"request {index}: {error}") from error
