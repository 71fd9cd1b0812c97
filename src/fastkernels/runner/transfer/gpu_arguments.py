"""What surrounds a call on a device that the judge holds (gpu_hold.py): no code of the worker's copies
anything.

    judge                                             worker
    lends memory: `GpuArguments.lend`     ──ticket──▶ its links work on arguments there
    maps the blocks: `GpuArguments.find`  ◀──Shown──  says where in its own memory results lie: `shown`
    brings arguments to the links, makes the cache cold, lets the device go; copies the results when it has
    ended: all in the judge's own process

Copies by the worker would lie in the judge's window, 64 of them 81 us long on an H100. Who left them out,
because its kernel writes results to both places at once, had as much time that nobody measured.

After a call that not all links of a chain were part of, the judge walks over arguments of the others before
it copies anything: nobody should have brought them into the cache (claim_checks.fetched). Nor should anybody
have written their results (claim_checks.strayed).

Whoever shows other places has results there: nothing is gained by it.
"""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fastkernels.errors import MachineError
from fastkernels.loader import views
from fastkernels.measure.cuda import Driver
from fastkernels.records import Record, TensorSpec
from fastkernels.runner.transfer.shared_memory import Arena, Ticket, Want, device_bytes, place, poison, wants

if TYPE_CHECKING:
    from fastkernels.measure.walk import Walk

LENT = -1  # a block: the memory that the judge lends
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class NoMemory(Exception):
    """There is nothing at a place that the worker told."""


class Spot(Record):
    """Where a result lies: in which block, or in LENT memory."""

    block: int = Field(ge=LENT)
    offset: int = Field(ge=0, lt=2**63)
    bytes: int = Field(ge=0, lt=2**63)


class Shown(Record):
    """`blocks`: handles of allocations (hexadecimal); `links`: of each the places of its results."""

    blocks: list[str]
    links: list[dict[str, Spot]]


def shown(
    links: Sequence[Mapping[str, Mapping[str, int]]],
    lent: tuple[int, int],
    block_of: Callable[[int], tuple[str, int]],
) -> dict[str, Any]:
    """A worker's end: `Shown` of results at these addresses. `lent`: where the judge's memory begins, and its
    bytes; `block_of` an address: handle and address of the block that holds it."""
    blocks: dict[str, int] = {}

    def spot(address: int, size: int) -> dict[str, int]:
        offset = address - lent[0]
        if 0 <= offset < lent[1]:
            return {"block": LENT, "offset": offset, "bytes": size}
        handle, base = block_of(address)
        return {"block": blocks.setdefault(handle, len(blocks)), "offset": address - base, "bytes": size}

    spots = [
        {name: spot(found["address"], found["bytes"]) for name, found in link.items() if found["bytes"]}
        for link in links
    ]
    return {"blocks": list(blocks), "links": spots}


class GpuArguments:
    """The judge's end, for one case: of a single process whose links lie on one GPU, or of a group in which
    rank r has link r, on GPU r. Copies of a rank are enqueued on the current stream of its GPU, which has to
    be the current one. NoMemory where nothing lies at a place that was shown."""

    def __init__(self, wanted: Sequence[Want], arguments: Mapping[str, TensorSpec], ranks: int = 1) -> None:
        """`wanted`: a link's results."""
        self._wanted = list(wanted)
        self._sides = [_Side(self._wanted, arguments, rank) for rank in range(ranks)]
        self._arguments = set(views.stored(arguments))
        self._kept: list[Arena] = []

    # ------------------------------------------------------------ memory

    def lend(self, links: int, arguments: Mapping[str, Tensor] | None = None) -> list[Ticket]:
        """Memory at other places than before, for so many links of each rank; with `arguments` in it,
        [n, *shape]. What was lent before stays until `take_back`."""
        return [
            side.lend(links, self._part_of(rank, arguments or {})) for rank, side in enumerate(self._sides)
        ]

    def take_back(self) -> None:
        """What was lent before: the worker has left it."""
        for side in self._sides:
            side.take_back()

    def find(self, shown: Sequence[Shown]) -> None:
        """Map the blocks in which results lie, of every rank."""
        for side, one in zip(self._sides, shown, strict=True):
            side.find(one)

    def lose(self) -> None:
        """Nothing of the worker's is mapped any more."""
        for side in self._sides:
            side.lose()

    def close(self) -> None:
        for side in self._sides:
            side.close()

    # ------------------------------------------------------------ one call

    def brings(self, name: str) -> bool:
        """Whether it is an argument."""
        return name in self._arguments

    def spoil(self) -> None:
        """What lies where results will be is none."""
        for side in self._sides:
            side.spoil()

    def get_ready(self, inputs: Mapping[str, Tensor], ran: Collection[int] | None = None) -> None:
        """For a call on these, [n, *shape], of these links or of all; there is room for its results."""
        self._kept = []  # gigabytes, perhaps: gone before there is room for the next
        self._kept = [side.room() for side in self._sides]
        for rank, side in enumerate(self._sides):
            side.give(self._part_of(rank, inputs))
            side.aim(ran)

    def enqueue_arguments(self, rank: int) -> None:
        """To where the links work on them: in the same way wherever they lie, so that it takes as long on
        every side."""
        self._sides[rank].enqueue_arguments()

    def enqueue_results(self, rank: int, ran: Collection[int] | None = None) -> None:
        """Into the room for them, of these links or of all; before, the walk over what the others would have
        read."""
        side = self._sides[rank]
        if side.walk is not None:
            side.walk.enqueue()
        side.enqueue_results(self._kept[rank], ran)

    @property
    def walk_ns(self) -> int | None:
        """Of the last call, which did not have every link run."""
        walk = self._sides[0].walk
        return None if walk is None else walk.ns()

    def take(self) -> None:
        """The results as they lie there now."""
        self._kept = [side.taken() for side in self._sides]

    def kept(self) -> Arena:
        """What was taken, [n, *shape] in one memory that no worker reaches."""
        first, *others = self._kept
        if not others:
            return first
        slots, size = place(want._replace(links=len(self._kept)) for want in self._wanted)
        whole = Arena(Ticket(size, slots, writable=True), poison(size))
        for name in slots:
            for part, one in zip(whole.parts(name), self._kept):
                part.copy_(next(one.parts(name)))
        return whole

    def note(self, names: Sequence[str]) -> None:
        """What the call has left of these arguments."""
        for side in self._sides:
            side.note(names)

    def echoed(self) -> dict[str, Tensor]:
        """As it was noted, [n, *shape]; once."""
        first, *others = [side.noted() for side in self._sides]
        if not others:
            return first
        return {
            name: torch.cat([echo[name].to(own.device) for echo in (first, *others)])
            for name, own in first.items()
        }

    def strayed(self, ran: Collection[int]) -> bool:
        """Whether anything lies where links have their results that are not among these, since `spoil`."""
        return any(side.strayed(ran) for side in self._sides)

    def last(self, ran: Collection[int] | None = None) -> bool:
        """Whether the results are still those that were taken."""
        return all(
            torch.equal(side.taken(ran).bytes, kept.bytes) for side, kept in zip(self._sides, self._kept)
        )

    def _part_of(self, rank: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if len(self._sides) == 1:
            return dict(tensors)
        return {name: value[rank : rank + 1] for name, value in tensors.items()}


def _there(method):
    """A method with its GPU as the current one."""

    @functools.wraps(method)
    def run(side: _Side, *arguments):
        with torch.cuda.device(side.gpu):
            return method(side, *arguments)

    return run


class _Source(NamedTuple):
    """Bytes of one result of a link. `is_lent`: they lie in the judge's memory."""

    name: str
    link: int
    bytes: Tensor
    is_lent: bool


class _Side:
    """One GPU's part."""

    def __init__(self, wanted: Sequence[Want], arguments: Mapping[str, TensorSpec], gpu: int) -> None:
        self._wanted, self.gpu = wanted, gpu
        self._specs, self._arguments = arguments, views.stored(arguments)
        self._driver = Driver()
        self._shifts = random.Random()
        self._lent: Arena | None = None
        self._before: Arena | None = None
        self._blocks: list[int] = []
        self._sources: list[_Source] = []
        self._given: dict[str, Tensor] = {}
        self.walk: Walk | None = None
        self._echo: dict[str, Tensor] = {}
        self._layout = Ticket(0, {}, writable=True)

    @_there
    def lend(self, links: int, arguments: Mapping[str, Tensor]) -> Ticket:
        torch.cuda.synchronize()  # the driver's calls need the primary context in this thread, too
        self.lose()
        wanted = wants(self._arguments, lambda name: links)
        lent = Arena.create(wanted, "cuda", writable=True, shifts=self._shifts)
        lent.write(arguments)
        self._before, self._lent = self._lent, lent
        slots, size = place(want._replace(links=links) for want in self._wanted)
        self._layout = Ticket(size, slots, writable=True)
        return lent.ticket

    @_there
    def take_back(self) -> None:
        if self._before is not None:
            self._before.close()
        self._before = None

    @_there
    def find(self, shown: Shown) -> None:
        self.lose()
        if len(set(shown.blocks)) != len(shown.blocks):
            raise NoMemory("a block is shown twice")
        places = {index: self._open(handle) for index, handle in enumerate(shown.blocks)}
        places[LENT] = self._ours.bytes.data_ptr(), self._ours.ticket.size
        for link, spots in enumerate(shown.links):
            for name, spot in spots.items():
                self._note(name, link, spot, places)
        for name in self._layout.slots.keys() & self._arguments.keys():
            for link, part in enumerate(self._ours.parts(name)):
                self._sources.append(_Source(name, link, part, is_lent=True))
        self.taken()  # code that copies is loaded at its first use, which may wait for a stream that is held

    @_there
    def lose(self) -> None:
        self._sources = []
        for block in self._blocks:
            self._driver.close(block)
        self._blocks = []

    @_there
    def close(self) -> None:
        self.lose()
        self.take_back()
        if self._lent is not None:
            self._lent.close()
        self._lent = None

    @_there
    def spoil(self) -> None:
        theirs = [one.bytes for one in self._sources if one.name not in self._arguments]
        filling = poison(max(map(len, theirs), default=0))
        _copy((filling[: len(source)], source) for source in theirs)
        _wait()

    @_there
    def give(self, inputs: Mapping[str, Tensor]) -> None:
        """[n, *shape], which `enqueue_arguments` brings."""
        self._given = {name: value.to("cuda").contiguous() for name, value in inputs.items()}

    @_there
    def aim(self, ran: Collection[int] | None) -> None:
        """A walk over lines that hold arguments, anywhere, of links that are not among these."""
        others = [
            (name, link, part)
            for name in self._given
            for link, part in enumerate(self._ours.parts(name))
            if ran is not None and link not in ran and len(part)
        ]
        if not others:
            self.walk = None
            return
        from fastkernels.measure.walk import LINE_BYTES, LINES, Walk  # Triton, which no worker needs for this

        drawn = [self._shifts.choice(others) for _ in range(LINES)]
        places = [(part, self._somewhere(name, link, len(part))) for name, link, part in drawn]
        self.walk = Walk([part.data_ptr() + place // LINE_BYTES * LINE_BYTES for part, place in places])

    def enqueue_arguments(self) -> None:
        _copy(
            (one.view(-1).view(torch.uint8), part)
            for name, value in self._given.items()
            for one, part in zip(value, self._ours.parts(name))
        )

    @_there
    def room(self) -> Arena:
        """For all results, which are not there yet."""
        return Arena(self._layout, poison(self._layout.size))

    def enqueue_results(self, kept: Arena, ran: Collection[int] | None = None) -> None:
        self._enqueue((one for one in self._sources if ran is None or one.link in ran), kept)

    def _enqueue(self, sources: Iterable[_Source], kept: Arena) -> None:
        parts = {name: list(kept.parts(name)) for name in self._layout.slots}
        _copy((one.bytes, parts[one.name][one.link][: len(one.bytes)]) for one in sources)

    @_there
    def strayed(self, ran: Collection[int]) -> bool:
        """Arguments came to all links, and so to what lies among them."""
        found = self.room()
        self._enqueue((one for one in self._sources if one.link not in ran and not one.is_lent), found)
        return not torch.equal(found.bytes, self.room().bytes)

    @_there
    def taken(self, ran: Collection[int] | None = None) -> Arena:
        kept = self.room()
        self.enqueue_results(kept, ran)
        _wait()
        return kept

    @_there
    def note(self, names: Sequence[str]) -> None:
        self._echo = {name: self._ours.tensors[name].clone() for name in names if name in self._arguments}
        _wait()

    def noted(self) -> dict[str, Tensor]:
        """What `note` has copied, which the caller owns from then on."""
        echo, self._echo = self._echo, {}
        return echo

    def _somewhere(self, name: str, link: int, size: int) -> int:
        """A byte of a link's argument, in memory of so many."""
        if not views.is_storage(name):
            return self._shifts.randrange(size)
        return views.somewhere(self._specs, name, views.is_strided(link), self._shifts)

    @property
    def _ours(self) -> Arena:
        assert self._lent is not None, "lend() comes first"
        return self._lent

    def _open(self, handle: str) -> tuple[int, int]:
        """Where a block is mapped, and its bytes."""
        try:
            address = self._driver.open(bytes.fromhex(handle))
        except (MachineError, ValueError) as error:
            raise NoMemory(f"a block that nobody can map: {error}") from error
        self._blocks.append(address)
        return address, self._driver.allocation(address)[1]

    def _note(self, name: str, link: int, spot: Spot, places: Mapping[int, tuple[int, int]]) -> None:
        """What does not fit into its slot stays poisoned."""
        slot = self._layout.slots.get(name)
        if slot is None or link >= slot.links or name in self._arguments:
            return
        address, size = places.get(spot.block, (0, 0))
        if spot.offset + spot.bytes > size:
            raise NoMemory(f"{name} of link {link} at {spot}, in a block of {size} bytes")
        if 0 < spot.bytes <= slot.capacity:
            result = device_bytes(address + spot.offset, spot.bytes)
            self._sources.append(_Source(name, link, result, is_lent=spot.block == LENT))


def _copy(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Bytes from the first to the second of each pair, in a launch or two for all that can be copied in
    words of one length."""
    by_word: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for source, target in pairs:
        if not len(source):
            continue
        fits = source.data_ptr() | target.data_ptr() | len(source)
        word = next(word for word in _WORDS if fits % word.itemsize == 0)
        sources, targets = by_word[word]
        sources.append(source.view(word))
        targets.append(target.view(word))
    for sources, targets in by_word.values():
        torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


def _wait() -> None:
    """For what is enqueued here, not for a stream that is held."""
    torch.cuda.current_stream().synchronize()
