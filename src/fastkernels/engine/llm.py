"""`LLM`: the public face of the engine for language models, with vLLM's names.

    llm = LLM("path/to/model")                                  a Hugging Face folder or id: real weights
    llm = LLM("llama", config="tiny", seed=1)                   a registered configuration: seeded random weights
    outputs = llm.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=8))
    outputs[0].outputs[0].token_ids
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastkernels.engine import memory
from fastkernels.engine.cache import BlockCache, BlockGroup
from fastkernels.engine.graphs import DecodeGraphs
from fastkernels.engine.program import Engine, Program, Tokens
from fastkernels.engine.requests import CompletionOutput, Request, RequestOutput, SamplingParams
from fastkernels.engine.rows import DeviceRows
from fastkernels.engine.runner import ModelRunner
from fastkernels.engine.scheduler import Scheduler
from fastkernels.engine.stages import TokenStage
from fastkernels.engine.text import Text
from fastkernels.errors import MachineError, RequestError, UsageError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.cache import allocate, cache_groups
from fastkernels.records import Size

Prompt = str | Sequence[int] | Mapping[str, Any]
# Requests that run at once when the caller does not say.
MAX_ROWS = {"cuda": 1024, "cpu": 256}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


class LLM:
    """A model with its caches and scheduler.

    model: a Hugging Face folder or id (real weights), an architecture id or a configuration (random weights from `seed`).
    config, size: which configuration of an architecture id; by default the full one on CUDA and the tiny one on CPU.
    overlay: task files that replace the baseline's. max_model_len: prompt and continuation; default the model's own.
    num_kv_cache_blocks: in place of a size taken from the free memory. dtype "auto": see ModelSource.dtype.

    Raises UsageError and its kin for what cannot be loaded, MachineError for what does not fit this machine.
    """

    def __init__(
        self, model: str | os.PathLike[str] | dict[str, Any], *, dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto", overlay: Overlay | None = None, config: str | None = None,
        size: Size | None = None, seed: int = 0, max_num_seqs: int | None = None, max_num_batched_tokens: int = 16384,
        max_model_len: int | None = None, gpu_memory_utilization: float = 0.9, num_kv_cache_blocks: int | None = None,
        block_size: int = 16, enforce_eager: bool = False, tokenizer: Any | None = None,
    ) -> None:
        self.device = _device(device)
        self.source = find(model, config, size or ("full" if self.device.type == "cuda" else "tiny"))
        self.dtype = self.source.dtype(self.device) if dtype == "auto" else _dtype(dtype)
        self.limits = self._limits(max_num_seqs, max_model_len, max_num_batched_tokens, block_size)
        self.overlay = overlay or Overlay.over_baseline()
        self.text = Text(tokenizer, self.source.folder)
        self.vocabulary = int(self.source.config["vocab_size"])
        self._seeds = np.random.default_rng(seed)
        self.model = load_model(self.source, self.overlay, self.device, self.dtype, seed)
        self._start(gpu_memory_utilization, num_kv_cache_blocks, enforce_eager)

    def _limits(self, rows: int | None, length: int | None, tokens: int, block_size: int) -> memory.Limits:
        reach = self.source.config.get("max_position_embeddings")
        length = length or reach
        if not isinstance(length, int) or (reach is not None and length > reach):
            raise UsageError(f"max_model_len={length}: the model's positions end at {reach}")
        limits = memory.Limits(rows or MAX_ROWS[self.device.type], length, tokens, block_size)
        for name, value, least in (("max_num_seqs", limits.max_rows, 1), ("max_num_batched_tokens", tokens, 1),
                                   ("max_model_len", length, 2), ("block_size", block_size, 1)):
            if value < least:
                raise UsageError(f"{name}={value}: must be at least {least}")
        return limits

    def _start(self, utilization: float, num_blocks: int | None, enforce_eager: bool) -> None:
        """Allocate rows, try the largest step, allocate the caches, and put the engine together."""
        limits, groups = self.limits, cache_groups(self.model)
        rows = DeviceRows(limits.max_rows + 1, limits.max_len, [limits.block_size] * len(groups), self.device)
        graphs = DecodeGraphs(self.device, limits.max_rows, limits.max_len, enforce_eager)
        self.runner = ModelRunner(self.model, rows, graphs)
        blocks = [num_blocks] * len(groups) if num_blocks is not None else self._size_cache(utilization)
        sizes = memory.block_bytes(self.model, limits.block_size, self.dtype)
        memory.require_room(blocks, sizes, limits, str(self.device))
        self._pools = allocate(self.model, blocks, limits.block_size, self.dtype, self.device)
        self._cache = BlockCache([BlockGroup(limits.max_rows + 1, limits.max_len, count, limits.block_size, spec.window)
                                  for spec, count in zip(groups, blocks)])
        self._scheduler = Scheduler(
            self._cache, limits.max_rows, limits.max_len, limits.max_tokens, self.text.watch)
        self.engine = Engine({"lm": TokenStage(self._scheduler, self.runner, self._make_request)})

    def _size_cache(self, utilization: float) -> list[int]:
        if self.device.type != "cuda":
            return memory.blocks_for(self.model, self.limits, memory.CPU_CACHE_BYTES, self.dtype)
        allocate(self.model, 2, self.limits.block_size, self.dtype, self.device)        # null blocks for the dry run
        graphs, self.runner.graphs.disabled = self.runner.graphs.disabled, "dry run"
        try:
            room = memory.free_for_cache(self.runner, self.limits, self.vocabulary, utilization)
        finally:
            self.runner.graphs.disabled = graphs
        self.runner.forget_counts()
        return memory.blocks_for(self.model, self.limits, room, self.dtype)

    # ---- generation

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *, forced: Sequence[Sequence[int]] | None = None, on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt; outputs in the order of the prompts.

        forced: for each prompt the ids that are fed after it in place of the sampled ones, through the normal decode
        steps; its output has, at every position, what the model chose there. on_progress(finished, all).

        Raises RequestError, which names the request, before anything is launched; the engine stays usable.
        """
        needs = self._needs(prompts, sampling_params, forced)
        texts = [prompt if isinstance(prompt, str) else None for prompt in _as_list(prompts)]
        for index, need in enumerate(needs):
            with _named(index):
                self._check(need)
        done = 0

        def count(_: int) -> None:
            nonlocal done
            done += 1
            if on_progress is not None:
                on_progress(done, len(needs))

        finished = self.engine.run((_language_model(need) for need in needs), count)
        return [self._output(str(i), text, request) for i, (text, request) in enumerate(zip(texts, finished))]

    def _needs(self, prompts: Any, params: Any, forced: Sequence[Sequence[int]] | None) -> list[Tokens]:
        listed = _as_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(listed)
        for name, given in (("sampling_params", params), ("forced", forced)):
            if given is not None and len(given) != len(listed):
                raise RequestError(f"{len(given)} {name} for {len(listed)} prompts")
        needs = []
        for index, (prompt, sampling) in enumerate(zip(listed, params)):
            with _named(index):
                ids = None if forced is None else [int(i) for i in forced[index]]
                needs.append(Tokens("lm", self._ids(prompt), sampling, ids))
        return needs

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.text.encode(prompt)
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" not in prompt:
                raise RequestError(f"A prompt dictionary needs prompt_token_ids, not {', '.join(map(repr, prompt))}")
            prompt = prompt["prompt_token_ids"]
        if any(isinstance(i, bool) or not isinstance(i, (int, np.integer)) for i in prompt):
            raise RequestError("token ids must be integers")
        return [int(i) for i in prompt]

    def _check(self, need: Tokens) -> None:
        """Whether the engine can ever serve a need; a RequestError says why not."""
        for name, ids in (("the prompt", need.tokens), ("forced", need.forced)):
            if ids is not None and not ids:
                raise RequestError(f"{name} is empty")
            if ids is not None and (min(ids) < 0 or max(ids) >= self.vocabulary):
                raise RequestError(f"{name} has ids from {min(ids)} to {max(ids)}; the vocabulary has 0..{self.vocabulary - 1}")
        length = len(need.tokens) + (1 if need.forced is None else len(need.forced))
        if length > self.limits.max_len:
            raise RequestError(f"{len(need.tokens)} prompt tokens leave no room for "
                               f"{length - len(need.tokens)} more: max_model_len is {self.limits.max_len}")
        if need.sampling.stop_strings and self.text.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this model has none: use stop_token_ids")
        grown = len(need.tokens) + self._max_tokens(need)
        if not self._scheduler.fits(grown):
            blocks = ", ".join(str(group.num_blocks - 1) for group in self._cache.groups)
            raise RequestError(f"{len(need.tokens)} prompt tokens and {self._max_tokens(need)} more do not fit the cache of "
                               f"{blocks} blocks of {self.limits.block_size} tokens: raise num_kv_cache_blocks")

    def _max_tokens(self, need: Tokens) -> int:
        if need.forced is not None:
            return len(need.forced)
        return min(need.sampling.max_tokens, self.limits.max_len - len(need.tokens))

    def _make_request(self, serial: int, need: Tokens) -> Request:
        self._check(need)
        params, stops = need.sampling, ()
        if need.forced is None:
            stops = tuple(params.stop_token_ids or ()) + (() if params.ignore_eos else self.source.stop_ids)
        seed = params.seed if params.seed is not None else int(self._seeds.integers(2**63))
        return Request(serial, need.tokens, params, seed, self._max_tokens(need), stops, need.forced)

    def _output(self, request_id: str, prompt: str | None, request: Request) -> RequestOutput:
        logprobs = request.logprobs if request.sampling.logprobs is not None else None
        completion = CompletionOutput(
            0, self.text.completion(request), request.output, request.finish_reason, logprobs)
        return RequestOutput(request_id, prompt, request.prompt, [completion])

    # ---- inspection

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Without CUDA graphs for the body: hooks on modules see every call."""
        graphs = self.runner.graphs
        before, graphs.disabled = graphs.disabled, "eager()"
        try:
            yield
        finally:
            graphs.disabled = before

    def stats(self) -> dict[str, Any]:
        """Counters since the start: steps, graph replays, eager steps by reason, preemptions; and memory in bytes."""
        weights = {p.data_ptr(): p.numel() * p.element_size() for p in self.model.parameters()}
        return {
            **self.runner.stats(),
            "preemptions": self._scheduler.num_preemptions,
            "weights_bytes": sum(weights.values()),
            "cache_bytes": sum(pool.numel() * pool.element_size() for pool in self._pools.values()),
            "rows_bytes": self.runner.rows.bytes,
            "cache_blocks": [group.num_blocks for group in self._cache.groups],
            "free_cache_blocks": self._cache.num_free,
            "block_size": self.limits.block_size,
        }


def _language_model(need: Tokens) -> Program:
    return (yield need)


def _as_list(prompts: Any) -> list[Any]:
    """One prompt or several, as a list of prompts: a list of integers is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    listed = list(prompts)
    return [listed] if listed and isinstance(listed[0], (int, np.integer)) else listed


@contextlib.contextmanager
def _named(index: int) -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        raise RequestError(f"request {index}: {error}") from error


def _device(device: str | torch.device) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if has_cuda else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"device={device!r}: expected auto, cpu or cuda") from error
    if chosen.type not in MAX_ROWS:
        raise UsageError(f"device={device!r}: expected auto, cpu or cuda")
    if chosen.type == "cuda" and not has_cuda:
        raise MachineError(f"device={device!r}: PyTorch sees no CUDA device here")
    return chosen


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise UsageError(f"dtype={dtype!r}: expected auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]
