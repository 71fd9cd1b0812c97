"""Sampled ids on their way to the host: the last kernel of a decode graph writes them into pinned memory, so
that no copy stands between one graph and the next.

The slot that a step writes to travels in its packet. With run-ahead by one, a step's ids are read before the
second step behind it is launched, so its slot is free by the third. Slot 0 is null: what warms a graph up
writes there, perhaps before the ids of the step ahead were read.
"""

from __future__ import annotations

import torch
from torch import Tensor

SLOTS = 3


class Outbox:
    """ids_KR: int64 [1 + SLOTS, rows], written by the device and read by the host."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        shape = (1 + SLOTS, num_rows)
        self.ids_KR = torch.zeros(shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._turn = 0

    def next_slot(self) -> int:
        self._turn = self._turn % SLOTS + 1
        return self._turn

    def ids(self, slot: int, count: int) -> Tensor:
        """Of the step that was given this slot, once it has ended."""
        return self.ids_KR[slot, :count]
