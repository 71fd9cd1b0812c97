"""One copy for each step: what the host tells the device, as named sections of one int32 buffer."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Sections start at multiples of 16 bytes, so that any of them can be viewed as float32 or int64.
_ALIGNMENT = 4
# Copies that may be on their way while the host writes the next one; run-ahead by one needs two.
_BUFFERS_IN_FLIGHT = 3


class Packet:
    """A buffer under construction. `sections`: where each part lies, which depends on the lengths alone."""

    def __init__(self) -> None:
        self.sections: dict[str, slice] = {}
        self.length = 0
        self._parts: list[tuple[slice, NDArray[np.int32]]] = []

    def add(self, name: str, values: NDArray[np.generic], dtype: type[np.generic] = np.int32) -> None:
        """A section with these values as `dtype` (of 4 or 8 bytes)."""
        words = np.ascontiguousarray(values, dtype).view(np.int32)
        section = slice(self.length, self.length + len(words))
        self.sections[name] = section
        self._parts.append((section, words))
        self.length += -(-len(words) // _ALIGNMENT) * _ALIGNMENT

    def write(self, buffer: NDArray[np.int32]) -> None:
        for section, words in self._parts:
            buffer[section] = words


class Uploader:
    """Sends packets to a device; on CUDA through pinned buffers, used again once their copy is done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sent: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def send(self, packet: Packet, into: Tensor | None = None) -> Tensor:
        """The packet on the device, int32 [length]; at the start of `into` where given. Does not wait."""
        if self.device.type != "cuda":
            sent = torch.empty(packet.length, dtype=torch.int32) if into is None else into
            packet.write(sent.numpy())
            return sent[: packet.length]
        pinned, event = self._pinned(packet.length)
        packet.write(pinned.numpy())
        sent = torch.empty(packet.length, dtype=torch.int32, device=self.device) if into is None else into
        sent[: packet.length].copy_(pinned[: packet.length], non_blocking=True)
        event.record()
        self._sent.append((pinned, event))
        return sent[: packet.length]

    def _pinned(self, length: int) -> tuple[Tensor, torch.cuda.Event]:
        if len(self._sent) >= _BUFFERS_IN_FLIGHT:
            pinned, event = self._sent.popleft()
            event.synchronize()
            if len(pinned) >= length:
                return pinned, event
        capacity = 1 << max(length - 1, 4095).bit_length()
        return torch.empty(capacity, dtype=torch.int32, pin_memory=True), torch.cuda.Event()
