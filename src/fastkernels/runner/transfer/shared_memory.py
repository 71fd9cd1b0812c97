"""Memory that the judge shares with a worker: tensors on the judge's side, bare addresses on the worker's,
or tensors where it is lent (gpu_arguments.py).

    judge     arena = Arena.create(slots, device, writable=False)      arena.tensors["arg.x"].copy_(...)
              worker.call("attach", ticket=arena.ticket, descriptors=arena.descriptors)
    worker    Attached(ticket, descriptors).address("arg.x")           for raw copies
              Attached(ticket, descriptors).tensor("arg.x", link)      for calls that work on it

On the CPU an arena is an anonymous memory file: it has no name that another process could open, and none
that could be left behind. It is sealed, so a worker can neither resize it nor, where `writable` is False,
map it for writing. On CUDA it is an allocation of its own, shared by IPC handle, which exposes this
allocation and nothing beside it.

A slot holds its tensor once for each link of a chain, or once for all (parameters of a large table): on the
judge's side slot tensors have that as their first dimension.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastkernels.measure.cuda import Driver
from fastkernels.records import TensorSpec

ALIGNMENT = 256  # of every tensor: what torch's own allocators give on CUDA
MOST_SHIFTS = 16  # alignments by which a tensor may start later than it has to
_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_FUTURE_WRITE = 1033, 0x2, 0x4, 0x10


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor lies in an arena: link i at `offset + i * pitch` bytes, where there is more than one.

    `capacity` (bytes, of one link) may exceed what shape and dtype need (strided results).
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    capacity: int
    pitch: int
    links: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a worker needs to attach. `handle`: a CUDA IPC handle, None for a memory file."""

    size: int
    slots: dict[str, Slot]
    writable: bool
    handle: bytes | None = None


class Want(NamedTuple):
    """A slot that is wanted. `capacity` (bytes, of one link): more than shape and dtype need."""

    name: str
    shape: Sequence[int]
    dtype: torch.dtype
    capacity: int = 0
    links: int = 1


def wants(specs: Mapping[str, TensorSpec], links_of: Callable[[str], int]) -> Iterator[Want]:
    """Slots for tensors as they are specified, for as many links as each has."""
    for name, spec in specs.items():
        yield Want(name, spec.shape, getattr(torch, spec.dtype), links=links_of(name))


def place(wanted: Iterable[Want], shifts: random.Random | None = None) -> tuple[dict[str, Slot], int]:
    """Slots one after another, and the bytes they take; a little further apart, by chance, with `shifts`."""
    slots: dict[str, Slot] = {}
    offset = 0
    for name, shape, dtype, least, links in wanted:
        needed = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        capacity = max(needed, least)
        pitch = -(-capacity // ALIGNMENT) * ALIGNMENT
        if shifts is not None:
            pitch += ALIGNMENT * shifts.randrange(MOST_SHIFTS)
            offset += ALIGNMENT * shifts.randrange(MOST_SHIFTS)
        slots[name] = Slot(offset, tuple(shape), str(dtype).removeprefix("torch."), capacity, pitch, links)
        offset += links * pitch
    return slots, max(offset, ALIGNMENT)


@dataclass
class Arena:
    """The judge's end. `bytes` is the whole memory as uint8; `tensors` are its slots, [links, *shape]."""

    ticket: Ticket
    bytes: Tensor
    descriptors: tuple[int, ...] = ()
    _release: Any = None
    tensors: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.tensors = {name: self.view(name, slot.shape) for name, slot in self.ticket.slots.items()}

    @classmethod
    def create(
        cls, wanted: Iterable[Want], device: str, writable: bool, shifts: random.Random | None = None
    ) -> Arena:
        slots, size = place(wanted, shifts)
        return _on_cuda(slots, size, writable) if device == "cuda" else _in_memory(slots, size, writable)

    @classmethod
    def like(
        cls,
        specs: Mapping[str, TensorSpec],
        device: str,
        links_of: Callable[[str], int],
        writable: bool = False,
    ) -> Arena:
        """An arena with room for the tensors that are specified, for as many links as each has."""
        return cls.create(wants(specs, links_of), device, writable)

    def view(self, name: str, shape: Sequence[int], stride: Sequence[int] | None = None) -> Tensor:
        """[links, *shape] over a slot's memory. ValueError where a link does not fit into its part."""
        slot = self.ticket.slots[name]
        dtype = getattr(torch, slot.dtype)
        stride = _contiguous(shape) if stride is None else stride
        sound = len(stride) == len(shape) and min((*shape, *stride), default=0) >= 0
        if not sound or span_elements(shape, stride) > slot.capacity // dtype.itemsize:
            raise ValueError(
                f"{name}: shape {tuple(shape)} with strides {tuple(stride)} does not fit its slot"
            )
        whole = self._part(name).view(dtype)
        strides = (slot.pitch // dtype.itemsize, *stride)
        return whole.as_strided((slot.links, *shape), strides, whole.storage_offset())

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill the slots' first links with [n, *shape]; other processes see the values when this returns."""
        for name, value in tensors.items():
            self.tensors[name][: len(value)].copy_(value)
        self.publish()

    def poison(self, names: Iterable[str] | None = None) -> None:
        """0xFF in every byte (of the named slots): NaN in every float, -1 in every integer."""
        for part in [self.bytes] if names is None else map(self._part, names):
            part.fill_(0xFF)
        self.publish()

    def copied(self) -> Arena:
        """What lies here now, in memory that no worker reaches."""
        copy = self.room()
        copy.bytes.copy_(self.bytes)
        copy.publish()
        return copy

    def room(self) -> Arena:
        """As much memory, which no worker reaches."""
        return Arena(self.ticket, torch.empty_like(self.bytes))

    def parts(self, name: str) -> Iterator[Tensor]:
        """The bytes of each link's part of a slot."""
        slot = self.ticket.slots[name]
        for part in self._part(name).split(max(slot.pitch, 1)):
            yield part[: slot.capacity]

    def _part(self, name: str) -> Tensor:
        slot = self.ticket.slots[name]
        return self.bytes[slot.offset : slot.offset + slot.links * slot.pitch]

    def publish(self) -> None:
        if self.bytes.is_cuda:
            torch.cuda.synchronize(self.bytes.device)

    def close(self) -> None:
        """Give the memory back. Tensors over it must not be used any more."""
        self.tensors = {}
        self.bytes = torch.empty(0, dtype=torch.uint8)
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()
        if self._release is not None:
            self._release()
            self._release = None


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))


def span_elements(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last that a strided tensor reaches."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride))


def _in_memory(slots: dict[str, Slot], size: int, writable: bool) -> Arena:
    descriptor = memory_file(size)
    mapped = mmap.mmap(descriptor, size)
    seals = _F_SEAL_SHRINK | _F_SEAL_GROW | (0 if writable else _F_SEAL_FUTURE_WRITE)
    with contextlib.suppress(OSError):  # a plain file of a system without memory files cannot be sealed
        fcntl.fcntl(descriptor, _F_ADD_SEALS, seals)
    return Arena(Ticket(size, slots, writable), torch.frombuffer(mapped, dtype=torch.uint8), (descriptor,))


def memory_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fastkernels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        descriptor, path = tempfile.mkstemp(prefix="fk-shared-")
        os.unlink(path)
    os.ftruncate(descriptor, size)
    return descriptor


class _DeviceMemory:
    """What torch needs to see a bare allocation as a tensor."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def device_bytes(address: int, size: int) -> Tensor:
    """Memory of a device, wherever it comes from, as uint8."""
    if not size:
        return torch.empty(0, dtype=torch.uint8, device="cuda")
    return torch.as_tensor(_DeviceMemory(address, size), device="cuda")


def poison(size: int) -> Tensor:
    """Bytes of the current GPU that are no number."""
    return torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")


def _on_cuda(slots: dict[str, Slot], size: int, writable: bool) -> Arena:
    torch.cuda.init()
    torch.cuda.synchronize()  # the driver's calls need the primary context to be current here
    driver = Driver()
    address = driver.allocate(size)
    memory = device_bytes(address, size)
    return Arena(
        Ticket(size, slots, writable, driver.export(address)), memory, (), lambda: driver.free(address)
    )


class Attached:
    """The worker's end: addresses into an arena, and tensors there, which end with it."""

    def __init__(self, ticket: Ticket, descriptors: Sequence[int] = (), driver: Driver | None = None) -> None:
        self.slots, self._size = ticket.slots, ticket.size
        self._driver, self._mapped = driver, None
        if ticket.handle is not None:
            assert driver is not None
            self._base = driver.open(ticket.handle)
        else:
            (descriptor,) = descriptors
            access = mmap.ACCESS_WRITE if ticket.writable else mmap.ACCESS_READ
            self._mapped = mmap.mmap(descriptor, ticket.size, access=access)
            os.close(descriptor)
            self._array = np.frombuffer(self._mapped, dtype=np.uint8)
            self._base = self._array.ctypes.data

    def address(self, name: str, link: int = 0) -> int:
        slot = self.slots[name]
        return self._base + slot.offset + (link * slot.pitch if slot.links > 1 else 0)

    def tensor(self, name: str, link: int = 0) -> Tensor:
        """A link's part of a slot."""
        slot, address = self.slots[name], self.address(name, link)
        dtype = getattr(torch, slot.dtype)
        size = dtype.itemsize * int(np.prod(slot.shape, dtype=np.int64))
        if self._mapped is None:
            found = device_bytes(address, size)
        else:
            start = address - self._base
            found = torch.from_numpy(self._array[start : start + size])
        return found.view(dtype).view(slot.shape)

    @property
    def span(self) -> tuple[int, int]:
        """Where it begins, and its bytes."""
        return self._base, self._size

    def close(self) -> None:
        if self._mapped is None:
            assert self._driver is not None
            self._driver.close(self._base)
        else:
            del self._array
            with contextlib.suppress(BufferError):  # who still has a tensor there keeps it
                self._mapped.close()
