"""How many calls one captured chain holds.

One call of a few microseconds cannot be timed by itself: two events round it, its launch, its code and the
place of its tensors move the reading by 3 to 10 %, and by the process. In a chain of many calls, each with
its own module, inputs and results at places of their own, all that averages out, and a layer of a model
runs in no other way. From a cold L2 rms_norm of 8 rows reads 3.2 us alone, with medians of three processes
up to 15 % apart, and 1.84 us in a chain of 64, 0.1 % apart (one H200; docs/measured.md).
"""

from __future__ import annotations

import math

CHAIN_S = 400e-6  # of calls at the speed of the device's memory: several times what surrounds them
MOST_LINKS = 64
MEMORY_SHARE = 1 / 64  # of the device's memory, for one side's inputs and parameters


def chain_length(floor_s: float, link_bytes: int, memory_bytes: int) -> int:
    """Links of a chain whose calls need `floor_s` each at least and read `link_bytes` of their own."""
    wanted = math.ceil(CHAIN_S / max(floor_s, CHAIN_S / MOST_LINKS))
    fitting = int(memory_bytes * MEMORY_SHARE / max(link_bytes, 1))
    return max(1, min(wanted, fitting))
