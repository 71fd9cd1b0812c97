"""Counters that launches find at zero and leave at zero, so that no launch pays for setting them.

    launches of one stream    follow each other: they share the counters of the stream
    a captured graph          may be replayed beside any other work: each captured call has its own, cut from
                              zeros made before the capture

Who captures calls `prepare` first. Where no such zeros are left, they are made in the capture: right as well,
but one more node, 1.5 us. What a graph was given is never given again: 4 bytes for each counter of each
captured call stay in use.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.launch import ceil_div

SPARE = 1 << 20  # counters for captures to come: 256 calls with 512 rows of 8 key/value heads
LINE = 32  # of a cache line; Triton's code for aligned pointers serves every call

_of_stream: dict[tuple[torch.device, int], Tensor] = {}
_spare: dict[torch.device, Tensor] = {}
_kept: list[Tensor] = []  # graphs refer to them: they live as long as the process


def prepare() -> None:
    """Zeros for the next capture on the current CUDA device. Who captures synchronises between the two."""
    device = torch.device("cuda", torch.cuda.current_device())
    if len(_spare.get(device, ())) < SPARE:
        _spare[device] = torch.zeros(2 * SPARE, dtype=torch.int32, device=device)
        _kept.append(_spare[device])


def zeroed(count: int, device: torch.device) -> Tensor:
    """At least `count` int32 zeros on the device for a launch on the current stream."""
    count = ceil_div(count, LINE) * LINE
    if _capturing(device):
        spare = _spare.get(device)
        if spare is None or len(spare) < count:
            return torch.zeros(count, dtype=torch.int32, device=device)
        _spare[device] = spare[count:]
        return spare[:count]
    key = device, _stream(device)
    if key not in _of_stream or len(_of_stream[key]) < count:
        # The allocator gives what this replaces to later work of the same stream, and to no other.
        _of_stream[key] = torch.zeros(count, dtype=torch.int32, device=device)
    return _of_stream[key]


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
