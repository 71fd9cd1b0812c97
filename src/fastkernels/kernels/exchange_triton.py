"""Collectives of GPUs that share memory: every rank stores its part in the others', which wait for the data.

    all_reduce       y = sum_r x_r                    whole inputs, added up
    reduce_scatter   y = sum_r x_r[part of this rank]
    all_gather       y[r] = x_r                       whole inputs, side by side
    all_to_all       y[r] = x_r[part of this rank]

No barrier, no flag: a slot is full of one pattern of bits, all ones, until what its rank sends has arrived,
element by element. As a float that pattern is a NaN; a NaN that is sent has other bits. Who has taken an
element puts the pattern back. Two halves of the arena take turns, so that nobody writes where another still
reads: a rank comes to launch e + 2 when it has heard from all others in launch e + 1, which they begin when
their launch e has ended. Therefore every launch hears from every rank.

All ranks add in the order of ranks, in float32, and round once: they get the same bits.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import symmetric
from fastkernels.kernels.group import group
from fastkernels.kernels.launch import ceil_div
from fastkernels.kernels.overlap import follow, overlap

# Of one all_reduce as two steps, in which a rank receives 2 / R of x in place of R - 1 times x: from these
# bytes on. Two ranks receive x either way.
TWO_STEPS_FROM = {3: 1 << 20, 4: 1 << 19, 5: 1 << 18, 6: 1 << 18, 7: 1 << 18, 8: 1 << 18}
TRANSFERRED = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
FLOATS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class Tile(NamedTuple):
    """bytes: of a tile. lag: tiles that a program sends ahead of the one that it waits for."""

    bytes: int
    num_warps: int
    lag: int
    programs: int


# By bytes of a slot, at most: small ones spread over as many processors as possible.
TILES = (
    (1 << 18, Tile(2048, 4, 0, 128)),
    (1 << 23, Tile(8192, 16, 1, 128)),
    (1 << 62, Tile(16384, 16, 4, 128)),
)


def tile_of(slot_bytes: int) -> Tile:
    return next(tile for most, tile in TILES if slot_bytes <= most)


def not_sent(x: Tensor, *others: Tensor) -> str | None:
    """Why no slot takes x."""
    if x.dtype not in TRANSFERRED:
        return f"sends float32, float16 and bfloat16, not {str(x.dtype).removeprefix('torch.')}"
    return None if all(one.numel() for one in (x, *others)) else "nothing is sent"


def unsupported(kernel: str, x: Tensor, *rest: Any) -> str | None:
    if reason := not_sent(x):
        return reason
    ranks = group().size
    whole = kernel == "all_gather" or (kernel == "all_reduce" and not in_two_steps(x, ranks))
    count = x.numel() if whole else _part(x, ranks)
    return symmetric.unsupported(x, count * x.element_size())


def all_reduce(x: Tensor) -> Tensor:
    x, here = x.contiguous(), group()
    y = torch.empty_like(x)
    if in_two_steps(x, here.size):
        part = _part(x, here.size)
        own = x.new_empty(min(part, x.numel() - here.rank * part))
        _exchange(x, own, part, splits=True, adds=True)
        _exchange(own, y, part, splits=False, adds=False)
    else:
        _exchange(x, y, x.numel(), splits=False, adds=True)
    return y


def reduce_scatter(x: Tensor, dim: int) -> Tensor:
    x = x.movedim(dim, 0).contiguous()
    y = x.new_empty((x.shape[0] // group().size, *x.shape[1:]))
    _exchange(x, y, y.numel(), splits=True, adds=True)
    return y.movedim(0, dim).contiguous()


def all_gather(x: Tensor, dim: int) -> Tensor:
    x = x.movedim(dim, 0).contiguous()
    y = x.new_empty((group().size * x.shape[0], *x.shape[1:]))
    _exchange(x, y, x.numel(), splits=False, adds=False)
    return y.movedim(0, dim).contiguous()


def all_to_all(x: Tensor) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    _exchange(x, y, x.numel() // group().size, splits=True, adds=False)
    return y


def in_two_steps(x: Tensor, ranks: int) -> bool:
    return ranks in TWO_STEPS_FROM and x.numel() * x.element_size() >= TWO_STEPS_FROM[ranks]


def _part(x: Tensor, ranks: int) -> int:
    """Elements of a rank's part, whole lines of 16 bytes."""
    line = 16 // x.element_size()
    return ceil_div(ceil_div(x.numel(), ranks), line) * line


def _exchange(x: Tensor, y: Tensor, count: int, splits: bool, adds: bool) -> None:
    """count: elements of a part; the last part may have fewer, and none of them none."""
    shared = symmetric.arena(count * x.element_size(), x.device)
    tile = tile_of(count * x.element_size())
    bits, elements = TRANSFERRED[x.dtype], tile.bytes // x.element_size()
    programs = min(tile.programs, ceil_div(count, elements))
    _kernel[(programs,)](
        x.view(bits),
        y.view(bits),
        shared.bases,
        shared.epochs,
        shared.rank,
        count,
        x.numel() if splits else y.numel() if not adds else shared.ranks * count,
        shared.slot // x.element_size(),
        RANKS=shared.ranks,
        SPLITS=splits,
        ADDS=adds,
        FLOAT=FLOATS[x.dtype],
        TILE=elements,
        LAG=tile.lag,
        MOST_PROGRAMS=symmetric.MOST_PROGRAMS,
        num_warps=tile.num_warps,
        **overlap(x.device),
    )


@triton.jit(do_not_specialize=["rank"])
def _kernel(
    x, y, bases, epochs, rank, count, total, slot,
    RANKS: tl.constexpr, SPLITS: tl.constexpr, ADDS: tl.constexpr, FLOAT: tl.constexpr, TILE: tl.constexpr,
    LAG: tl.constexpr, MOST_PROGRAMS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """total: elements of all parts together. An arena has at most 2^30 elements, so 32 bits count them."""
    follow(OVERLAPS)
    program, programs = tl.program_id(0), tl.num_programs(0)
    epoch = tl.load(epochs + program)
    half = (epoch & 1).to(tl.int64) * RANKS * slot
    own = slots_of(bases, rank, half, x)
    tiles = tl.cdiv(count, TILE)
    for turn in range(program, tiles + LAG * programs, programs):
        if turn < tiles:
            at = turn * TILE + tl.arange(0, TILE)
            for step in tl.static_range(1, RANKS):
                peer = (rank + step) % RANKS
                inside = _inside(at, peer if SPLITS else rank, count, total)
                bits = tl.load(x + peer * count * SPLITS + at, mask=inside, other=0)
                send(slots_of(bases, peer, half + rank * slot, x) + at, bits, inside)
        if turn >= LAG * programs:
            at = (turn - LAG * programs) * TILE + tl.arange(0, TILE)
            sums = tl.zeros([TILE], tl.float32)
            for r in tl.static_range(RANKS):
                inside = _inside(at, rank if SPLITS else r, count, total)
                if r == rank:
                    bits = tl.load(x + rank * count * SPLITS + at, mask=inside, other=0)
                else:
                    bits = take(own + r * slot + at, inside, bases + RANKS)
                if ADDS:
                    sums += bits.to(FLOAT, bitcast=True).to(tl.float32)
                else:
                    tl.store(y + r * count + at, bits, mask=inside)
            if ADDS:
                added = sums.to(FLOAT).to(x.dtype.element_ty, bitcast=True)
                tl.store(y + at, added, mask=_inside(at, rank * SPLITS, count, total))
    advance(epochs, epoch, MOST_PROGRAMS)


@triton.jit
def _inside(at, part, count, total):
    """Which elements of a part there are."""
    return (at < count) & (part * count + at < total)


@triton.jit
def slots_of(bases, rank, first, x):
    """Element `first` of rank's slots, as a pointer to what x points to."""
    return tl.multiple_of(tl.load(bases + rank).to(x.dtype) + first, 16)


@triton.jit
def send(slot, bits, mask):
    """To another rank: all ones would not be seen."""
    other_nan = tl.full(bits.shape, 0x7FFF if bits.dtype == tl.int16 else 0x7FFFFFFF, bits.dtype)
    tl.store(slot, tl.where(bits == -1, other_nan, bits), mask=mask)


@triton.jit
def take(slot, mask, waits, LOOKS: tl.constexpr = 4096):
    """From another rank, once all of it is there; the slot is free again. waits: where the address lies of a
    number that is 0 once no more will come; a program looks there every few milliseconds.

    The barrier is for tensors of fewer elements than the program has threads: several warps then look for the
    same element, and the first to see it would take it from the others.
    """
    bits = tl.load(slot, mask=mask, other=0, volatile=True)
    absent = tl.max((bits == -1).to(tl.int32), 0)
    looks, waiting = 0, 1
    while absent != 0:
        bits = tl.load(slot, mask=mask, other=0, volatile=True)
        looks += 1
        if looks % LOOKS == 0:
            waiting = tl.load(tl.load(waits).to(tl.pointer_type(tl.int32)), volatile=True)
        absent = tl.max((bits == -1).to(tl.int32) * waiting, 0)
    tl.debug_barrier()
    tl.store(slot, tl.full(bits.shape, -1, bits.dtype), mask=mask)
    return bits


@triton.jit
def advance(epochs, epoch, MOST_PROGRAMS: tl.constexpr):
    """The launch is counted, by programs that it does not have as well."""
    counted = tl.program_id(0) + tl.arange(0, MOST_PROGRAMS) * tl.num_programs(0)
    tl.store(epochs + counted, tl.full([MOST_PROGRAMS], 1, tl.int32) + epoch, mask=counted < MOST_PROGRAMS)
