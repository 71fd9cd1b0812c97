"""`LLM`: the public face of the engine for language models, with vLLM's names.

llm = LLM("path/to/model")                         a Hugging Face folder or id: real weights
llm = LLM("llama", config="tiny", seed=1)          a registered configuration: seeded random weights
outputs = llm.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=8))
outputs[0].outputs[0].token_ids

A model that listens (`LLM("whisper")`) or sees takes prompts of the form
{"prompt_token_ids": ids, "multi_modal_data": {"audio": samples}}, or {"image": [...]}.

A server adds, steps and aborts requests itself: `add_request`, `step`, `abort` (loop.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
import torch

from fastkernels.engine.core import memory, parallel
from fastkernels.engine.core.build import Options, build
from fastkernels.engine.core.checks import (
    MOST_SEED,
    Errors,
    device_of,
    dtype_of,
    require_errors,
    require_integer,
    require_share,
)
from fastkernels.engine.core.follower import Blueprint
from fastkernels.engine.core.graph_pool import without_graphs
from fastkernels.engine.core.ranks import Ranks
from fastkernels.engine.core.request import Request, RequestOutput
from fastkernels.engine.core.sampling_params import SamplingParams, default_params
from fastkernels.engine.loop import Loop, language_model, refused
from fastkernels.engine.media.beside import Beside
from fastkernels.engine.media.intake import Intake, Prompt, as_list, text_of
from fastkernels.engine.media.listener import Listener
from fastkernels.engine.media.outputs import Reader
from fastkernels.engine.media.text import Message, Text, conversations
from fastkernels.engine.media.towers import Towers
from fastkernels.engine.programs.program import Engine, Stage, Tokens
from fastkernels.engine.programs.token_stage import TokenStage
from fastkernels.engine.progress import UseTqdm, bar
from fastkernels.errors import RequestError, UsageError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import TOKENS, find, load_model, weights_bytes
from fastkernels.nn.cache import has_source
from fastkernels.nn.config import ConfigReader, text_config
from fastkernels.nn.partition import use_partition
from fastkernels.records import Size, default_size

# Requests that run at once when the caller does not say.
MAX_ROWS = {"cuda": 1024, "cpu": 256}


class LLM:
    """A model with its caches and scheduler.

    model: a Hugging Face folder or id (real weights), or an architecture id or a configuration dictionary
        (random weights from `seed`).
    config, size: which configuration of an architecture id; by default the full one on CUDA, tiny on CPU.
    dtype: "auto" is the configuration's on CUDA and float32 on CPU.
    overlay: task files that replace the baseline's.
    max_model_len: positions of prompt and continuation; default the model's own.
    max_num_seqs: requests that run at once; default 1,024 on CUDA and 256 on CPU, or fewer where layers keep
        states and no more have room.
    num_kv_cache_blocks: of each cache group, in place of a size taken from the free memory.
    enable_prefix_caching: find the blocks of earlier requests with the same first tokens again. Off by
        default: in a comparison every prompt is computed.
    tensor_parallel_size: ranks that compute the model together, each with a part of it: GPUs 0, 1, ..., or on
        a CPU processes. `shutdown` ends them; so does the end of the LLM or of the process.
    enable_expert_parallel: a rank has some experts whole, in place of a slice of each.

    Raises UsageError and its kin for what cannot be loaded, MachineError for what does not fit this machine.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | dict[str, Any],
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        overlay: Overlay | None = None,
        config: str | None = None,
        size: Size | None = None,
        seed: int = 0,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int = 16384,
        max_model_len: int | None = None,
        gpu_memory_utilization: float = 0.9,
        num_kv_cache_blocks: int | None = None,
        block_size: int = 16,
        enforce_eager: bool = False,
        enable_prefix_caching: bool = False,
        tokenizer: Any | None = None,
        tensor_parallel_size: int = 1,
        enable_expert_parallel: bool = False,
    ) -> None:
        require_integer("seed", seed, 0, MOST_SEED)
        require_integer("tensor_parallel_size", tensor_parallel_size, 1)
        require_share("gpu_memory_utilization", gpu_memory_utilization)
        if num_kv_cache_blocks is not None:
            require_integer("num_kv_cache_blocks", num_kv_cache_blocks, 1)
        self.device = parallel.device_of_rank_0(device_of(device), tensor_parallel_size)
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        self.source = find(model, config, size or default_size(self.device.type))
        self.source.require((TOKENS,), "LLM")
        parallel.require_served(self.source, tensor_parallel_size, enable_expert_parallel)
        self.dtype = self.source.dtype(self.device) if dtype == "auto" else dtype_of(dtype)
        self.limits = self._limits(max_num_seqs, max_model_len, max_num_batched_tokens, block_size)
        self.overlay = overlay or Overlay.over_baseline()
        self._defaults = default_params(self.source)
        self.text = Text(tokenizer, self.source.folder)
        self.vocabulary = ConfigReader(text_config(self.source.config)).integer("vocab_size")
        options = Options(gpu_memory_utilization, num_kv_cache_blocks, enforce_eager, enable_prefix_caching)
        blueprint = Blueprint(
            self.source,
            self.overlay.layers,
            self.device.type,
            self.dtype,
            seed,
            self.vocabulary,
            self.limits,
            options,
            tensor_parallel_size,
            enable_expert_parallel,
        )
        with use_partition(blueprint.partition(0)):
            needed = weights_bytes(self.source, self.dtype)
        memory.require_weights_fit(
            needed * (1 if self.device.type == "cuda" else tensor_parallel_size), self.device
        )
        self.ranks = Ranks(blueprint)
        weakref.finalize(self, self.ranks.close)
        with self.ranks.building():
            self.model = load_model(self.source, self.overlay, self.device, self.dtype, seed)
        rows = memory.rows_for_states(
            self.model,
            self.limits.max_rows,
            max_num_seqs is not None,
            self.dtype,
            self.device,
            gpu_memory_utilization,
        )
        self.limits = dataclasses.replace(self.limits, max_rows=rows)
        self.beside = self._beside(enforce_eager)
        warm = None if self.beside is None else self.beside.largest
        self.ranks.meet()
        with self.ranks.building():
            machinery = build(
                self.model,
                self.vocabulary,
                self.limits,
                self.dtype,
                self.device,
                options,
                warm,
                others=self.ranks if tensor_parallel_size > 1 else None,
            )
        self.ranks.ready()
        self.runner, self._scheduler, self._pools = machinery.runner, machinery.scheduler, machinery.pools
        self._intake = Intake(
            self.text,
            self.vocabulary,
            self.limits,
            self._scheduler,
            self.source.stop_ids,
            self._defaults,
            seeds=np.random.default_rng(seed),
            beside=self.beside,
        )
        stages: dict[str, Stage] = {}
        if self.beside is not None:
            stages |= self.beside.stages(self._scheduler.ledger)
        stages["lm"] = TokenStage(self._scheduler, self.ranks.device(self.runner), self._intake.make_request)
        self.engine = Engine(stages)
        self._loop = Loop(self.engine, self._intake)

    def _limits(self, rows: int | None, length: int | None, tokens: int, block_size: int) -> memory.Limits:
        reach = text_config(self.source.config).get(self.source.architecture.positions)
        length = reach if length is None else length
        if length is None:
            positions = self.source.architecture.positions
            raise UsageError(f"max_model_len: the configuration has no '{positions}', so say it here")
        rows = MAX_ROWS[self.device.type] if rows is None else rows
        for name, value, least in (
            ("max_num_seqs", rows, 1),
            ("max_num_batched_tokens", tokens, 1),
            ("max_model_len", length, 2),
            ("block_size", block_size, 1),
        ):
            require_integer(name, value, least)
        if reach is not None and length > reach:
            raise UsageError(f"max_model_len={length}: the model's positions end at {reach}")
        return memory.Limits(rows, length, tokens, block_size)

    def _beside(self, enforce_eager: bool) -> Beside | None:
        if has_source(self.model):
            return Listener(self.model, self.device, enforce_eager)
        if hasattr(self.model, "media"):
            given = (self.device, self.dtype, enforce_eager, self.source.processor)
            return Towers(self.model, *given, self.text.encode_part)
        return None

    # ---- generation

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        forced: Sequence[Sequence[int]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        on_token: Callable[[RequestOutput], None] | None = None,
        errors: Literal["raise"] = "raise",
    ) -> list[RequestOutput]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        forced: Sequence[Sequence[int]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        on_token: Callable[[RequestOutput], None] | None = None,
        errors: Literal["return"],
    ) -> list[RequestOutput | RequestError]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        forced: Sequence[Sequence[int]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        on_token: Callable[[RequestOutput], None] | None = None,
        errors: Errors = "raise",
    ) -> list[RequestOutput] | list[RequestOutput | RequestError]:
        """Continue every prompt; outputs in the order of the prompts.

        sampling_params: of all prompts, or one for each; None stands for `get_default_sampling_params()`.
        forced: for each prompt the ids that are fed after it in place of the sampled ones, through the normal
        decode steps (max_tokens and stops do not apply); the output has what the model chose there.
        on_progress(finished, all): called as requests end.
        on_token(output): called after each step for each request that got a token; the output has the new
        tokens and their text alone, and the place of the prompt as its request_id.
        use_tqdm: a progress bar of the requests; or what makes one, called as tqdm is.
        errors: of requests that cannot be served. "raise": RequestError for the first, with its place, before
        anything is launched. "return": its RequestError stands in its place, and the others are served.

        The engine stays usable.
        """
        require_errors(errors)
        if not self.engine.is_idle:
            raise UsageError(
                "generate() cannot run beside requests of add_request() or of another generate(): "
                "step them to their end"
            )
        listed = as_list(prompts)
        asked = self._intake.asked(listed, sampling_params, forced, errors)
        done = 0

        def count(_: int) -> None:
            nonlocal done
            done += 1
            advance()
            if on_progress is not None:
                on_progress(done, len(asked))

        readers, programs = [], []
        for i, (prompt, one) in enumerate(zip(listed, asked)):
            num_answers = 0 if isinstance(one, RequestError) else one[0].sampling.n
            readers.append(Reader(str(i), text_of(prompt), self.text, num_answers))
            programs.append(
                refused(one)
                if isinstance(one, RequestError)
                else language_model(_read(one[0], readers[-1], on_token), one[1])
            )
        with bar(use_tqdm, len(asked)) as advance:
            ended = self.engine.run(programs, count)
        return [
            one if isinstance(one, RequestError) else reader.whole(one) for one, reader in zip(ended, readers)
        ]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, a list of {"role": ..., "content": text}, or several.

        The tokenizer's chat template, or `chat_template`, makes the prompt, with `chat_template_kwargs` and
        `tools` as its variables; continue_final_message: the answer goes on in the last message. RequestError
        without a tokenizer or a template, and for messages that the template refuses.
        """
        listed = conversations(messages)
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            **(chat_template_kwargs or {}),
        }
        prompts: list[Prompt] = []
        for index, conversation in enumerate(listed):
            try:
                text, ids = self.text.conversation(conversation, **options)
            except RequestError as error:
                raise RequestError(f"request {index}: {error}") from error
            prompts.append({"prompt": text, "prompt_token_ids": ids})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def get_tokenizer(self) -> Any:
        """The model's tokenizer; RequestError where there is none."""
        return self.text.required("get_tokenizer()")

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        stream: bool = False,
    ) -> str:
        """Queue a request and return its id; `step` gives its output, with `stream` piece by piece.

        Raises RequestError, which harms no other request.
        """
        return self._loop.add_request(prompt, sampling_params, request_id=request_id, stream=stream)

    def step(self) -> list[RequestOutput]:
        """One step for all requests: the new tokens of streamed ones, the whole output of others that
        finished. An exception ends all requests; the engine stays usable."""
        return self._loop.step()

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is; it has no further output. False if there is none."""
        return self._loop.abort(request_id)

    def has_unfinished_requests(self) -> bool:
        return self._loop.has_unfinished_requests()

    def get_default_sampling_params(self) -> SamplingParams:
        """How a prompt without parameters is continued: as the model's generation_config.json says."""
        return self._defaults

    def reset_prefix_cache(self) -> None:
        """Forget the prefixes of earlier requests."""
        if self._scheduler.prefixes is not None:
            self._scheduler.prefixes.forget()

    def shutdown(self) -> None:
        """End the other ranks. A model of several ranks cannot be used any more; one of one can."""
        self.ranks.close()

    # ---- inspection

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Without CUDA graphs for the body: hooks on modules see every call."""
        others = {} if self.beside is None else self.beside.graphs
        pools = [self.runner.pool, *(graphs.pool for graphs in others.values())]
        with without_graphs(pools, "eager()"):
            yield

    def stats(self) -> dict[str, Any]:
        """Counters since the start (eager steps by reason), and memory in bytes; of rank 0."""
        prefixes, cache = self._scheduler.prefixes, self._scheduler.cache
        weights = {p.data_ptr(): p.numel() * p.element_size() for p in self.model.parameters()}
        return {
            **self.runner.stats(),
            "preemptions": self._scheduler.ledger.num_preemptions,
            "weights_bytes": sum(weights.values()),
            "cache_bytes": sum(pool.numel() * pool.element_size() for pool in self._pools),
            "rows_bytes": self.runner.rows.bytes,
            "cache_blocks": [group.num_blocks for group in cache.groups],
            "free_cache_blocks": cache.num_free,
            "block_size": self.limits.block_size,
            "max_rows": self.limits.max_rows,
            "tensor_parallel_size": self.ranks.size,
            "state_bytes": sum(state.numel() * state.element_size() for state in self.runner.rows.states),
            "prefix_tokens_asked": 0 if prefixes is None else prefixes.num_asked,
            "prefix_tokens_found": 0 if prefixes is None else prefixes.num_found,
            **({} if self.beside is None else self.beside.stats()),
        }


def _read(need: Tokens, reader: Reader, on_token: Callable[[RequestOutput], None] | None) -> Tokens:
    if on_token is None:
        return need

    def read(request: Request) -> None:
        on_token(reader.news(request))

    return dataclasses.replace(need, on_token=read)
