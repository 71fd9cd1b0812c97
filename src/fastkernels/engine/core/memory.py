"""How many rows there are: those whose states have room. How many cache blocks: from the memory that is left
once the largest step has been tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fastkernels.engine.core.model_runner import ModelRunner
from fastkernels.engine.core.packing import null_plan
from fastkernels.engine.core.plan import Plan
from fastkernels.errors import MachineError
from fastkernels.free_memory import allocatable_bytes, available_bytes
from fastkernels.nn.cache import cache_groups, paged_owners, state_owners

# On CPU memory is shared with everything else: enough for small models, never a large part of the machine.
CPU_CACHE_BYTES = 256 << 20
# What fragmentation of the allocator may add to the peak of the largest step.
PEAK_MARGIN = 1.1
GRAPH_LOGITS_COPIES = 3
# What states of all rows may take of the free memory where the caller does not say how many rows there are.
STATES_SHARE = 0.5
# The null block, one for a token and one to grow into.
LEAST_BLOCKS = 3
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine is built for."""

    max_rows: int
    max_len: int
    max_tokens: int
    block_size: int


def block_bytes(model: nn.Module, block_size: int, dtype: torch.dtype) -> list[int]:
    """Bytes of one block of each cache group: all pools of all its layers."""
    groups = cache_groups(model)
    sizes = [0] * len(groups)
    for _, _, paged in paged_owners(model):
        entry = int(np.prod(paged.shape)) * dtype.itemsize
        sizes[groups.index(paged)] += len(paged.pools) * block_size * entry
    return sizes


def row_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Bytes of the states of one row, of all layers."""
    return sum(
        int(np.prod(shape)) * state.dtype(dtype).itemsize
        for _, _, state in state_owners(model)
        for _, shape in state.tensors
    )


def rows_for_states(
    model: nn.Module, rows: int, is_asked: bool, dtype: torch.dtype, device: torch.device, utilization: float
) -> int:
    """Rows that an engine gets: `rows`, or fewer if their states would take too much and nobody asked for
    that many. MachineError where the states of the rows that were asked for do not fit."""
    each, available = row_bytes(model, dtype), available_bytes(device)
    if not each or available is None:
        return rows
    if device.type == "cuda":
        # Of two engines on one GPU each gets its part, whichever starts first.
        total = torch.cuda.mem_get_info(device)[1]
        available = min(available, int(total * utilization) - torch.cuda.memory_reserved(device))
    if not is_asked:
        rows = max(1, min(rows, int(available * STATES_SHARE) // each - 1))  # row 0 is null
    if (rows + 1) * each > available:
        raise MachineError(
            f"The states of {rows} rows and the null row take {(rows + 1) * each / GIB:.1f} GiB, and "
            f"{available / GIB:.1f} GiB are free on {device}: lower max_num_seqs"
        )
    return rows


def blocks_for(model: nn.Module, limits: Limits, budget_bytes: int, dtype: torch.dtype) -> list[int]:
    """Blocks of each group that fit `budget_bytes`: as many as can ever be used, else equal numbers of
    tokens.

    A group behind a window needs blocks for the window of each row and for the tokens of a step, so it may be
    smaller.
    """
    sizes = block_bytes(model, limits.block_size, dtype)
    per_row = -(-limits.max_len // limits.block_size)
    useful = []
    for spec in cache_groups(model):
        rows = limits.max_rows * per_row
        if spec.window is not None:
            in_window = -(-spec.window // limits.block_size) + 2
            rows = min(rows, limits.max_rows * in_window + -(-limits.max_tokens // limits.block_size))
        useful.append(rows + 1)  # block 0 is null
    blocks = [0] * len(useful)
    left, open_groups = budget_bytes, sorted(range(len(useful)), key=lambda g: useful[g])
    while open_groups:
        share = left // sum(sizes[g] for g in open_groups)
        g = open_groups.pop(0)
        blocks[g] = min(useful[g], share)
        left -= blocks[g] * sizes[g]
    return blocks


def free_for_cache(
    runner: ModelRunner,
    limits: Limits,
    vocabulary: int,
    utilization: float,
    warm: Callable[[], object] | None = None,
) -> int:
    """Bytes of the GPU that caches may take, found by running the largest steps (and `warm`)."""
    device = runner.device
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    for plan in largest_steps(limits, len(runner.rows.tables_GRN)):
        runner.launch(plan).result()
    if warm is not None:
        warm()
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    # Decode graphs have a pool of their own; logits and the sampler's copies are what fills it.
    graphs = GRAPH_LOGITS_COPIES * limits.max_rows * vocabulary * 4
    allowed = total * utilization - torch.cuda.memory_reserved(device)
    room = int(min(free, allowed) - peak * PEAK_MARGIN - graphs)
    if room <= 0:
        raise MachineError(
            f"No memory is left for the cache: the GPU has {total / GIB:.1f} GiB, of which "
            f"gpu_memory_utilization={utilization} allows {total * utilization / GIB:.1f}; "
            f"{free / GIB:.1f} are free, weights and states take {before / GIB:.1f}, "
            f"the largest step {peak * PEAK_MARGIN / GIB:.1f} and decode graphs {graphs / GIB:.1f}. "
            "Lower max_num_batched_tokens or max_num_seqs, or use a larger GPU"
        )
    return room


def largest_steps(limits: Limits, num_groups: int) -> list[Plan]:
    """Plans on the null row and null block: long prompts that fill the token budget, and all rows at once."""
    long = min(limits.max_len - 1, limits.max_tokens)
    few = [long] * max(1, limits.max_tokens // long)
    many = [max(1, limits.max_tokens // limits.max_rows)] * min(limits.max_rows, limits.max_tokens)
    return [null_plan([min(n, long) for n in counts], num_groups) for counts in (few, many)]


def require_weights_fit(needed: int, device: torch.device) -> None:
    """Refuse a model whose weights alone exceed the memory, before the machine starts to swap."""
    available = available_bytes(device)
    if available is not None and needed > available:
        raise MachineError(
            f"The weights take {needed / GIB:.1f} GiB and {available / GIB:.1f} GiB are free on {device}: "
            "use a smaller configuration or dtype, or another device"
        )


def require_rows_fit(limits: Limits, num_groups: int, device: torch.device) -> None:
    """Refuse, with numbers, more rows than the memory holds tokens and block tables of."""
    blocks = -(-limits.max_len // limits.block_size)
    needed = 4 * (limits.max_rows + 1) * (limits.max_len + num_groups * blocks)  # int32, and a null row
    available = allocatable_bytes(device)
    if available is not None and needed > available:
        raise MachineError(
            f"max_num_seqs={limits.max_rows}: tokens and tables of as many rows of {limits.max_len} tokens "
            f"take {needed / GIB:.1f} GiB, and {available / GIB:.1f} GiB are free on {device}. "
            "Lower max_num_seqs or max_model_len"
        )


def require_blocks_fit(asked: int, sizes: list[int], device: torch.device) -> None:
    """Refuse, with numbers, more blocks than the memory holds: an allocator only says that it failed."""
    needed, available = asked * sum(sizes), allocatable_bytes(device)
    if available is not None and needed > available:
        raise MachineError(
            f"num_kv_cache_blocks={asked}: they take {needed / GIB:.1f} GiB and {available / GIB:.1f} GiB "
            f"are free on {device}: at most {available // sum(sizes)} fit. Lower it, or leave it out"
        )


def require_room(blocks: list[int], sizes: list[int], limits: Limits, where: str) -> None:
    """Refuse, with numbers, a cache in which not even a short request could finish."""
    if any(count < LEAST_BLOCKS for count in blocks):
        needed = LEAST_BLOCKS * sum(sizes)
        has = sum(count * size for count, size in zip(blocks, sizes))
        raise MachineError(
            f"The cache on {where} would have {min(blocks)} blocks of {limits.block_size} tokens "
            f"({has / GIB:.3f} GiB); at least {LEAST_BLOCKS} are needed ({needed / GIB:.3f} GiB). "
            "Free memory, or raise gpu_memory_utilization or num_kv_cache_blocks"
        )
