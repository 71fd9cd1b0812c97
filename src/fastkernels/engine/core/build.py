"""From a loaded model to what serves it: rows, caches as large as the memory that is left, a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fastkernels.engine.core import memory
from fastkernels.engine.core.cache import BlockCache, BlockGroup
from fastkernels.engine.core.graph_pool import GraphPool, without_graphs
from fastkernels.engine.core.model_runner import ModelRunner
from fastkernels.engine.core.prefix_cache import Prefixes, SharedGroup
from fastkernels.engine.core.rows import DeviceRows
from fastkernels.engine.core.scheduler import Scheduler
from fastkernels.engine.core.split_vocabulary import SplitVocabulary
from fastkernels.errors import UsageError
from fastkernels.nn.cache import allocate, allocate_states, cache_groups, state_groups
from fastkernels.nn.partition import partition


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller of `LLM` may choose about the machinery."""

    gpu_memory_utilization: float
    num_kv_cache_blocks: int | None  # None: from the free memory
    enforce_eager: bool
    enable_prefix_caching: bool


@dataclass(frozen=True, slots=True)
class Machinery:
    runner: ModelRunner
    scheduler: Scheduler
    pools: list[Tensor]  # of caches, states among them


class Others(Protocol):
    """The other ranks of a model that is split."""

    def alive(self) -> None:
        """Raises where one has ended."""
        ...

    def least(self, room: int) -> int:
        """Of the bytes that each has for its caches."""
        ...


def build(
    model: nn.Module,
    vocabulary: int,
    limits: memory.Limits,
    dtype: torch.dtype,
    device: torch.device,
    options: Options,
    warm: Callable[[], object] | None = None,
    others: Others | None = None,
) -> Machinery:
    """Allocate rows and states, try the largest step, allocate the caches. warm: another stage's largest
    launch, for which the caches leave room. others: where the model is one rank's part, inside
    `use_partition`.

    Raises MachineError if there is no room, UsageError for prefix caching with states.
    """
    if options.enable_prefix_caching and state_groups(model):
        raise UsageError(
            "enable_prefix_caching: this model has layers that keep a state for each request. A state is "
            "overwritten by the next token, so there is nothing to find of another request's prefix. "
            "Leave prefix caching off"
        )
    specs = cache_groups(model)
    states = allocate_states(model, limits.max_rows + 1, dtype, device)
    block_sizes = [limits.block_size] * len(specs)
    memory.require_rows_fit(limits, len(specs), device)
    rows = DeviceRows(limits.max_rows + 1, limits.max_len, block_sizes, device, states)
    pool = GraphPool(device, options.enforce_eager)
    split = SplitVocabulary(model, partition(), vocabulary) if others else None
    alive = others.alive if others else None
    runner = ModelRunner(model, rows, pool, limits.max_rows, limits.max_tokens, split, alive)
    if options.num_kv_cache_blocks is None:
        room = _room(runner, vocabulary, limits, dtype, options.gpu_memory_utilization, warm)
        blocks = memory.blocks_for(model, limits, others.least(room) if others else room, dtype)
    else:
        blocks = [options.num_kv_cache_blocks] * len(specs)
    sizes = memory.block_bytes(model, limits.block_size, dtype)
    memory.require_room(blocks, sizes, limits, str(device))
    if options.num_kv_cache_blocks is not None:
        memory.require_blocks_fit(options.num_kv_cache_blocks, sizes, device)
    pools = allocate(model, blocks, limits.block_size, dtype, device)

    shapes = [
        (limits.max_rows + 1, limits.max_len, count, limits.block_size, spec.window)
        for spec, count in zip(specs, blocks)
    ]
    prefixes = None
    if options.enable_prefix_caching:
        shared = [SharedGroup(*shape) for shape in shapes]
        cache, prefixes = BlockCache([*shared]), Prefixes(shared)
    else:
        cache = BlockCache([BlockGroup(*shape) for shape in shapes])
    scheduler = Scheduler(cache, limits.max_rows, limits.max_len, limits.max_tokens, prefixes)
    return Machinery(runner, scheduler, [*pools.values(), *states])


def _room(
    runner: ModelRunner,
    vocabulary: int,
    limits: memory.Limits,
    dtype: torch.dtype,
    utilization: float,
    warm: Callable[[], object] | None,
) -> int:
    """Bytes for the caches."""
    if runner.device.type != "cuda":
        return memory.CPU_CACHE_BYTES
    allocate(runner.model, 2, limits.block_size, dtype, runner.device)  # null blocks for the dry run
    with without_graphs([runner.pool], "dry run"):
        room = memory.free_for_cache(runner, limits, vocabulary, utilization, warm)
    runner.forget_counts()
    return room
