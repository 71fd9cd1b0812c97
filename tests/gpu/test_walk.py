"""A walk over lines tells those in the cache from those in memory, whoever brought them there."""

from __future__ import annotations

import random
import statistics

import pytest
import torch

from fastkernels.measure.cold import L2Flush
from fastkernels.measure.cuda import Driver
from fastkernels.measure.walk import LINE_BYTES, LINES, Walk

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


def test_lines_in_the_cache_are_read_sooner() -> None:
    parts = [torch.zeros(1 << 16, dtype=torch.uint8, device="cuda") for _ in range(32)]
    places = random.Random(5)
    lines = [
        places.choice(parts).data_ptr() + LINE_BYTES * places.randrange((1 << 16) // LINE_BYTES)
        for _ in range(LINES)
    ]
    walk, flush = Walk(lines), L2Flush(Driver(), torch.cuda.Stream())
    took_ns = {}
    for warm in (0, 8, 32):
        found = []
        for _ in range(9):
            flush()
            for part in parts[:warm]:
                part.sum()
            torch.cuda._sleep(400_000)  # until the walk is enqueued
            walk.enqueue()
            torch.cuda.synchronize()
            found.append(walk.ns())
        took_ns[warm] = statistics.median(found)
    print(f"walks over {LINES} lines of 32 tensors, 0, 8 and 32 of them just read: {took_ns} ns")
    assert took_ns[32] < 0.7 * took_ns[0]
    assert took_ns[8] < 0.95 * took_ns[0]
