"""How many cache blocks there are: from the memory that is left once the largest step has been tried."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fastkernels.engine.cache import TableDiff
from fastkernels.engine.plan import Plan
from fastkernels.engine.runner import ModelRunner
from fastkernels.errors import MachineError
from fastkernels.nn.cache import cache_groups, cache_owners

# On CPU memory is shared with everything else: enough for small models, never a large part of the machine.
CPU_CACHE_BYTES = 256 << 20
# What fragmentation of the allocator may add to the peak of the largest step.
PEAK_MARGIN = 1.1
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine is built for."""

    max_rows: int
    max_len: int
    max_tokens: int
    block_size: int


def block_bytes(model: nn.Module, block_size: int, dtype: torch.dtype) -> list[int]:
    """Bytes of one block of each cache group: K and V of all its layers."""
    groups = cache_groups(model)
    sizes = [0] * len(groups)
    for _, owner in cache_owners(model):
        entry = int(np.prod(owner.cache.shape)) * dtype.itemsize
        sizes[groups.index(owner.cache)] += 2 * block_size * entry
    return sizes


def blocks_for(model: nn.Module, limits: Limits, budget_bytes: int, dtype: torch.dtype) -> list[int]:
    """Blocks of each group that fit `budget_bytes`: as many as can ever be used, else equal numbers of tokens.

    A group behind a window needs blocks for the window of each row and for the tokens of a step, so it may be smaller.
    """
    sizes = block_bytes(model, limits.block_size, dtype)
    per_row = -(-limits.max_len // limits.block_size)
    useful = []
    for spec in cache_groups(model):
        rows = limits.max_rows * per_row
        if spec.window is not None:
            in_window = -(-spec.window // limits.block_size) + 2
            rows = min(rows, limits.max_rows * in_window + -(-limits.max_tokens // limits.block_size))
        useful.append(rows + 1)                                         # block 0 is null
    blocks = [0] * len(useful)
    left, open_groups = budget_bytes, sorted(range(len(useful)), key=lambda g: useful[g])
    while open_groups:
        share = left // sum(sizes[g] for g in open_groups)
        g = open_groups.pop(0)
        blocks[g] = min(useful[g], share)
        left -= blocks[g] * sizes[g]
    return blocks


def free_for_cache(runner: ModelRunner, limits: Limits, vocabulary: int, utilization: float) -> int:
    """Bytes of the GPU that caches may take, after running the largest prefill and the largest decode step."""
    device = runner.device
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    for plan in largest_steps(limits, len(runner.rows.tables_GRN)):
        runner.launch(plan).result()
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    graphs = limits.max_rows * vocabulary * 4 * 3           # logits and the sampler's copies live in the graphs' own pool
    room = int(min(free, total * utilization - (total - free)) - peak * PEAK_MARGIN - graphs)
    if room <= 0:
        raise MachineError(
            f"No memory is left for the cache: the GPU has {total / GIB:.1f} GiB, gpu_memory_utilization={utilization} "
            f"allows {total * utilization / GIB:.1f}, {(total - free) / GIB:.1f} are in use (weights and other "
            f"processes), the largest step takes {peak * PEAK_MARGIN / GIB:.1f} and decode graphs {graphs / GIB:.1f}. "
            "Lower max_num_batched_tokens or max_num_seqs, or use a larger GPU")
    return room


def largest_steps(limits: Limits, num_groups: int) -> list[Plan]:
    """Plans on the null row and null block: long prompts that fill the token budget, and all rows at once."""
    long = min(limits.max_len - 1, limits.max_tokens)
    few = [long] * max(1, limits.max_tokens // long)
    many = [max(1, limits.max_tokens // limits.max_rows)] * min(limits.max_rows, limits.max_tokens)
    return [_null_plan([min(n, long) for n in counts], num_groups) for counts in (few, many)]


def _null_plan(counts: list[int], num_groups: int) -> Plan:
    zeros, nothing = np.zeros(len(counts), np.int64), np.zeros(0, np.int64)
    return Plan(zeros, zeros, np.array(counts), np.ones(len(counts), bool), zeros - 1, 0,
                [TableDiff(nothing, nothing, nothing) for _ in range(num_groups)], [])


def require_room(blocks: list[int], sizes: list[int], limits: Limits, where: str) -> None:
    """Refuse, with numbers, a cache in which not even a short request could finish."""
    if any(count < 3 for count in blocks):
        needed = 3 * sum(sizes)
        has = sum(count * size for count, size in zip(blocks, sizes))
        raise MachineError(
            f"The cache on {where} would have {min(blocks)} blocks of {limits.block_size} tokens ({has / GIB:.3f} GiB); "
            f"at least 3 are needed ({needed / GIB:.3f} GiB). Free memory, or raise gpu_memory_utilization")
