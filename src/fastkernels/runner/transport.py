"""How inputs get into a worker, and results out of it: what surrounds a call on the judge's side.

    Direct    a single process on a CPU: the judge writes into its tensors and reads from them itself, while
              it stands still. None of this lies in the judge's window of a call, and nothing is shared.
    Mapped    what is timed on GPUs, which the judge holds: mapped.py.
    Boxes     memory that the judge shares with the worker, whose own code copies: on a CPU in a group of
              ranks, and where a worker cannot lend its memory; on GPUs for what is checked before anything is
              timed. The copies lie in the window, and the request for a call and the answer do, too.

The three ways to make a call are `direct`, `held` and `asked` (ways.py).

A worker tells where its tensors and results lie (`Places`). Whoever tells other places has inputs and results
there: nothing is gained by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from fastkernels.records import Record, TensorSpec
from fastkernels.runner.gate import Reaches
from fastkernels.runner.memory import Memory, NoMemory, as_bytes
from fastkernels.runner.shared import Arena, Want, wants


class Place(Record):
    """Where something lies in a worker's memory."""

    address: int = Field(ge=0, lt=2**64)
    bytes: int = Field(ge=0, lt=2**64)


Places = dict[str, Place]
Way = Literal["direct", "held", "asked"]


class Transport(Protocol):
    """What Direct and Boxes have in common, in the order of one call; its arguments come and its results go
    between `clear` and `ask_again`. The worker stands still meanwhile. NoMemory where nothing lies at a
    place."""

    def clear(self) -> None:
        """Nothing is there that could be taken for results."""
        ...

    def ask_again(self) -> None:
        """Before results are asked for once more."""
        ...

    def lasts(self, kept: Arena) -> bool:
        """Whether the results are still those that were taken."""
        ...

    def again(self, places: Places) -> Arena:
        """Other results than the last call's, for which the worker was asked."""
        ...

    def echoed(self, places: Places, echo: Sequence[str]) -> dict[str, Tensor]:
        """The named inputs as they are after the call, [n, *shape]; valid until the next one."""
        ...

    def close(self) -> None: ...


class Boxes:
    """`outbox` and `echo` as the worker has them (KernelSide.boxes)."""

    def __init__(self, inbox: Arena, outbox: Arena, echo: Arena) -> None:
        self._inbox, self._outbox, self._echo = inbox, outbox, echo
        self._delivered: list[str] = []

    @classmethod
    def create(
        cls,
        device: str,
        inbox: Arena,
        wanted: Iterable[Want],
        inputs: Mapping[str, TensorSpec],
        links_of: Callable[[str], int],
    ) -> Boxes:
        outbox = Arena.create(wanted, device, writable=True)
        return cls(inbox, outbox, Arena.like(inputs, device, links_of, writable=True))

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (*self._outbox.descriptors, *self._echo.descriptors)

    @property
    def tickets(self) -> dict:
        return {"outbox": self._outbox.ticket, "echo": self._echo.ticket}

    def clear(self) -> None:
        self._outbox.poison()

    def deliver(self, inputs: Mapping[str, Tensor]) -> None:
        """The judge's arguments, [n, *shape], once its clock runs: before, a candidate could compute with
        them."""
        self._delivered = list(inputs)
        self._inbox.write(inputs)

    def take(self) -> Arena:
        """The results, in memory that no worker reaches; the worker stands still after its answer."""
        kept = self._outbox.copied()
        self.withdraw()
        return kept

    def withdraw(self) -> None:
        """The arguments."""
        self._inbox.poison(self._delivered)

    def ask_again(self) -> None:
        self._outbox.poison()

    def lasts(self, kept: Arena) -> bool:
        return torch.equal(kept.bytes, self._outbox.bytes)

    def again(self, places: Places) -> Arena:
        return self._outbox

    def echoed(self, places: Places, echo: Sequence[str]) -> dict[str, Tensor]:
        return {name: self._echo.tensors[name] for name in echo}

    def close(self) -> None:
        self._outbox.close()
        self._echo.close()


class Direct:
    """Of a call of one link: no chain, no ranks."""

    def __init__(self, memory: Memory, wanted: Iterable[Want], inputs: Mapping[str, TensorSpec]) -> None:
        self._memory, self._wanted = memory, list(wanted)
        self._names = {want.name for want in self._wanted}
        self._echo = Arena.private(wants(inputs, lambda name: 1))
        self._inputs: Places = {}
        self._taken: Places = {}

    def clear(self) -> None:
        """Results are read into new memory."""

    def bring(self, places: Places, inputs: Mapping[str, Tensor]) -> None:
        """The judge's arguments, [1, *shape], to their places; the worker stands still before its call."""
        self._inputs = places
        if self._memory.shared((place.address, place.bytes) for place in places.values()):
            raise NoMemory("arguments lie in memory that may be mapped twice")
        for name, value in inputs.items():
            source = as_bytes(value.contiguous())
            self._memory.write(_place(places, name, len(source)).address, source)

    def take(self, reaches: Reaches, echo: Sequence[str]) -> Arena:
        """The results, of which those that are no arguments lie there in their order, and of the arguments in
        `echo` what the call has left; the worker stands still after it."""
        found = {f"out.{i}": Place(address=a, bytes=b) for i, (a, b) in enumerate(reaches) if b}
        self._taken = {n: place for n, place in (self._inputs | found).items() if n in self._names}
        self._read(self._echo, {name: self._inputs[name] for name in echo if name in self._inputs})
        return self._results(self._taken)

    def ask_again(self) -> None:
        """They are read where they were."""

    def lasts(self, kept: Arena) -> bool:
        return torch.equal(kept.bytes, self._results(self._taken).bytes)

    def again(self, places: Places) -> Arena:
        return self._results(places)

    def echoed(self, places: Places, echo: Sequence[str]) -> dict[str, Tensor]:
        """Arguments were read when the call had ended; parameters lie where the worker says now."""
        self._read(self._echo, {name: place for name, place in places.items() if name not in self._inputs})
        return {name: self._echo.tensors[name] for name in echo}

    def close(self) -> None:
        self._echo.close()

    def _results(self, places: Places) -> Arena:
        box = Arena.private(self._wanted)
        self._read(box, places)
        return box

    def _read(self, box: Arena, places: Places) -> None:
        """What does not fit into its slot stays poisoned."""
        for name, place in places.items():
            slot = box.ticket.slots.get(name)
            if slot is not None and 0 < place.bytes <= slot.capacity:
                self._memory.read(place.address, box.bytes[slot.offset : slot.offset + place.bytes])


def _place(places: Places, name: str, needed: int) -> Place:
    place = places.get(name)
    if place is None or place.bytes != needed:
        raise NoMemory(f"{name} needs {needed} bytes, and lies at {place}")
    return place
