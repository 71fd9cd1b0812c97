"""Host time of a step: plan, pack and retire of decode steps, without a device.

python benchmarks/scheduler_micro.py --rows 1024
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from fastkernels.engine.core.arrivals import Arrivals
from fastkernels.engine.core.cache import BlockCache, BlockGroup
from fastkernels.engine.core.packing import pack_decode
from fastkernels.engine.core.plan import Sampled
from fastkernels.engine.core.prefix_cache import Prefixes, SharedGroup
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.scheduler import Scheduler

MAX_LEN, BLOCK_SIZE, PROMPT = 2048, 16, 512


def measure(num_rows: int, num_steps: int, shares_prefixes: bool) -> dict[str, float]:
    """Median milliseconds of each part of a step in which every row decodes."""
    kind = SharedGroup if shares_prefixes else BlockGroup
    group = kind(num_rows + 1, MAX_LEN, num_rows * MAX_LEN // BLOCK_SIZE + 1, BLOCK_SIZE)
    prefixes = Prefixes([group]) if isinstance(group, SharedGroup) else None
    scheduler = Scheduler(BlockCache([group]), num_rows, MAX_LEN, num_rows * PROMPT, prefixes)
    for serial in range(num_rows):
        # Different lengths: in each step another part of the rows starts a block.
        prompt = list(range(PROMPT - serial % BLOCK_SIZE))
        scheduler.add(
            Request(serial, prompt, SamplingParams(), seed=0, max_tokens=MAX_LEN - PROMPT, stop_ids=(7,))
        )
    arrivals = Arrivals(scheduler.ledger)
    ids = np.zeros(num_rows, np.int64)
    flying = scheduler.plan()
    seconds: dict[str, list[float]] = {"plan": [], "pack": [], "retire": []}
    for _ in range(num_steps):
        times = [time.perf_counter()]
        plan = scheduler.plan()
        times.append(time.perf_counter())
        packet = pack_decode(plan, num_rows)
        packet.write(np.empty(packet.length, np.int32))
        times.append(time.perf_counter())
        arrivals.retire(flying, Sampled(ids))
        times.append(time.perf_counter())
        flying = plan
        for part, begin, end in zip(seconds, times, times[1:]):
            seconds[part].append(end - begin)
    return {part: 1e3 * statistics.median(values) for part, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--prefix-caching", action="store_true")
    arguments = parser.parse_args()
    parts = measure(arguments.rows, arguments.steps, arguments.prefix_caching)
    total = sum(parts.values())
    print(
        f"{arguments.rows} rows: {total:.3f} ms a step ("
        + ", ".join(f"{k} {v:.3f}" for k, v in parts.items())
        + ")"
    )


if __name__ == "__main__":
    main()
