"""Who of several programs is the last: the one that adds up what all of them left in memory."""

# Triton types a device function's arguments as what a launch passes.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_last(counter, count):
    """Whether this program is the last of `count` to call it; then the counter is back at 0 (counters.py).

    What the others stored before their call may be loaded behind it, with `.cg`: from the second-level cache,
    since lines of the first level are not coherent.
    """
    # One thread counts for its program. The barrier orders the stores of all threads before that atomic,
    # whose release (at the scope of the GPU) is cumulative: it publishes them too. The last to count reads
    # from a chain of atomics on one counter, so it acquires what every program before it published. Triton
    # hands the count to the other threads over a barrier behind the atomic: their loads come after it.
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1
    if last:
        # Nobody of this launch counts here again, and the next launch or replay begins behind its end.
        tl.store(counter, 0)
    return last
