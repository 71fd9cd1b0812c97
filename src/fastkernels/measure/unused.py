"""Device memory that torch's allocator keeps for later.

The four processes of a trial share one device: what one keeps, another cannot have. Under memory pressure
torch gives back by itself, but not while a graph is captured, and not what another process lacks.
"""

from __future__ import annotations

import torch

MUCH_BYTES = 4 << 30  # to keep between two calls: asking the driver again costs milliseconds


def give_back(beyond_bytes: int = 0) -> None:
    """Give all unused memory of this process back to the device, if it is more than `beyond_bytes`."""
    if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > beyond_bytes:
        torch.cuda.empty_cache()
