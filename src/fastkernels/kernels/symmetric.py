"""Memory that the GPUs of a group share: what a kernel of one rank stores there, the others load from theirs.

    shared = arena(slot_bytes, device)      the same call on every rank; made once, 128 MiB and more
    unsupported(x, slot_bytes)              why there can be none for this call

An arena of R ranks is, on every rank, two halves of R slots each, one for what each rank sends, and a count
of launches. It is full of bytes 0xFF where nothing has arrived: exchange_triton.py says how that replaces
barriers. Rank r's memory lies in the address space of every rank, at `bases[r]`.

`workspace` is memory of the same kind without any order, for libraries and for copies; who uses it puts
barriers round its use. PyTorch would set up NVLink multicast beside such memory: it is told not to.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fastkernels.kernels.group import group, not_distributed
from fastkernels.kernels.launch import ceil_div, power_of_two

MOST_PROGRAMS = 256  # of a launch: each counts the launches for itself
LEAST_BYTES, MOST_BYTES = 1 << 26, 1 << 31  # of half an arena
LINE = 16  # bytes: slots begin at multiples of it
ABSENT = 0xFF


@dataclass(frozen=True)
class Arena:
    """bases: int64 [R + 1], where each rank's slots begin, and behind them where `waits` lies.
    epochs: int32 [MOST_PROGRAMS]. slot: bytes. waits: int32 [1] of the host: 0 where no rank comes any more.
    """

    rank: int
    ranks: int
    slot: int
    bases: Tensor
    epochs: Tensor
    waits: Tensor
    kept: Any  # this rank's memory and what maps the others'


@dataclass
class _Memory:
    """What the ranks of a process group have together."""

    of: Any = None
    arenas: dict[int, Arena] = field(default_factory=dict)  # by the bytes of a half
    workspaces: list[tuple[Tensor, Any]] = field(default_factory=list)  # captured graphs refer to older ones


_memory = _Memory()


def _own() -> _Memory:
    """Of the group that is there now: an engine that ends takes its own with it."""
    global _memory
    if _memory.of is not dist.group.WORLD:
        _memory = _Memory(dist.group.WORLD)
    return _memory


def unshared() -> str | None:
    """Why the ranks share no memory."""
    return not_distributed() or _unshared(group().size)


def unsupported(x: Tensor, slot_bytes: int) -> str | None:
    """Why no arena with slots of this size serves a call with x; the same answer on every rank."""
    if reason := unshared():
        return reason
    here = group()
    half = _half(slot_bytes, here.size)
    if half > MOST_BYTES:
        return f"{here.size} slots of {slot_bytes} bytes are more than {MOST_BYTES}"
    return None if half in _own().arenas else _captured()


def unsupported_workspace(size: int) -> str | None:
    """Why there is no workspace of `size` bytes; the same answer on every rank."""
    if reason := unshared():
        return reason
    if size > MOST_BYTES:
        return f"{size} bytes are more than {MOST_BYTES}"
    return None if any(len(memory) >= size for memory, _ in _own().workspaces) else _captured()


def _captured() -> str | None:
    if torch.cuda.is_current_stream_capturing():
        return "its memory is set up by a call of this size that is not captured"
    return None


@lru_cache
def _unshared(ranks: int) -> str | None:
    """Why the GPUs of this group cannot load from each other."""
    if ranks > torch.cuda.device_count():
        return f"{ranks} ranks need {ranks} GPUs that each process sees, here are {torch.cuda.device_count()}"
    own = torch.cuda.current_device()
    for other in range(ranks):
        if other != own and not torch.cuda.can_device_access_peer(own, other):
            return f"GPU {own} has no access to GPU {other}"
    return None


def arena(slot_bytes: int, device: torch.device) -> Arena:
    """With slots of at least this size: a collective where it is the first of its size."""
    here, arenas = group(), _own().arenas
    half = _half(slot_bytes, here.size)
    if (found := arenas.get(half)) is None:
        memory, handle = _shared(2 * half, device)
        places = [handle.get_buffer(r, (2 * half,), torch.uint8).data_ptr() for r in range(here.size)]
        waits = torch.ones(1, dtype=torch.int32, pin_memory=True)  # which the GPU reads where it lies
        bases = torch.tensor([*places, waits.data_ptr()], dtype=torch.int64, device=device)
        memory.fill_(ABSENT)
        epochs = torch.zeros(MOST_PROGRAMS, dtype=torch.int32, device=device)
        slot = half // here.size // LINE * LINE
        found = Arena(here.rank, here.size, slot, bases, epochs, waits, (memory, handle))
        torch.cuda.synchronize(device)
        dist.barrier()
        arenas[half] = found
    return found


def abandon() -> None:
    """Other ranks are gone: kernels that wait for them end, with results that are of no use."""
    for one in _memory.arenas.values():
        one.waits.zero_()


def workspace(size: int, device: torch.device) -> tuple[Tensor, Any]:
    """uint8 memory of at least `size` bytes, and torch's handle of it. Where it grows a collective."""
    workspaces = _own().workspaces
    if not workspaces or len(workspaces[-1][0]) < size:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{size} bytes of symmetric memory are needed in a capture: make the call once before it"
            )
        workspaces.append(_shared(max(LEAST_BYTES, power_of_two(size)), device))
    return workspaces[-1]


@lru_cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Of what travels while others compute: one, so that every rank's launches there have one order. What it
    launches takes the next processor that is free, before what a product still has to launch."""
    return torch.cuda.Stream(device, priority=-1)


def group_name() -> Any:
    return dist.group.WORLD.group_name  # pyright: ignore[reportOptionalMemberAccess]


def _half(slot_bytes: int, ranks: int) -> int:
    return max(LEAST_BYTES, power_of_two(ceil_div(slot_bytes, LINE) * LINE * ranks))


def _shared(size: int, device: torch.device) -> tuple[Tensor, Any]:
    """uint8 [size] of this rank, and PyTorch's handle of what all ranks have."""
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    import torch.distributed._symmetric_memory as symm_mem

    memory = symm_mem.empty(size, dtype=torch.uint8, device=device)
    return memory, symm_mem.rendezvous(memory, group_name())
