"""How long a device takes to read lines of memory one after another: which of them were in the L2 cache.

On an H100 a line from the cache comes in 0.30 us and one from memory in 0.48, so a walk over some of them
tells whether somebody has just read, or prefetched, what nobody should have needed
(runner/kernel_trial/claim_checks.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

LINES = 64  # of a walk
LINE_BYTES = 128


@triton.jit
def _walk(addresses_ptr, found_ptr, lines, nothing):
    """`nothing` is 0, which no compiler knows: each address depends on what the last one held."""
    value = tl.load(found_ptr)
    for index in range(lines):
        address = tl.load(addresses_ptr + index + value * nothing)
        value = tl.load(address.to(tl.pointer_type(tl.int32)), cache_modifier=".cg")
    tl.store(found_ptr, value)


class Walk:
    """Over LINES lines of memory of the current GPU, at these addresses. Its code is loaded when this is
    made."""

    def __init__(self, addresses: Sequence[int]) -> None:
        self._addresses = torch.tensor(addresses, dtype=torch.int64, device="cuda")
        self._found = torch.zeros((), dtype=torch.int32, device="cuda")
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.enqueue()
        torch.cuda.current_stream().synchronize()

    def enqueue(self) -> None:
        """On the current stream."""
        self._begin.record()
        _walk[(1,)](self._addresses, self._found, LINES, 0)
        self._end.record()

    def ns(self) -> int:
        """Of a walk that has ended."""
        return round(self._begin.elapsed_time(self._end) * 1e6)
