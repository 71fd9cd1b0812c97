"""How a launch of decode attention is cut: keys of a tile, splits of a row, stages of the loop."""

from __future__ import annotations

from typing import NamedTuple

from fastkernels.kernels.launch import ceil_div

TILE_BYTES = 16384  # of K, and of V, in one step of the loop: four programs fit on an SM, 128 KiB in flight
LARGEST_TILE = 128
STAGES = 3
DEEP_STAGES = 5  # where few programs fill a multiprocessor and each walks a whole row
MAX_SPLITS = 64
RESIDENT = 4  # programs that fit on a multiprocessor: 125 registers a thread, 38 KiB of shared memory (sm_90)
FULL = 0.9  # of what fits: 64 rows of 8 key/value heads
LAUNCHED = 16  # programs of a launch for each multiprocessor where splits only even out rows
LONGEST_SPLIT = 2048  # keys that one program walks, tile after tile: what may be left to it at the end


class Cut(NamedTuple):
    """tile: keys of one step of the loop · splits: programs of a row and head, at most · smallest: keys of a
    split, at least · stages: tiles on their way at once."""

    tile: int
    splits: int
    smallest: int
    stages: int


def cut(rows: int, num_kv_heads: int, longest: int, key_bytes: int, window: int, processors: int) -> Cut:
    """For rows of up to `longest` keys, each of `key_bytes`, on a device of so many multiprocessors."""
    tile = min(LARGEST_TILE, TILE_BYTES // key_bytes)
    most = min(longest, window + tile) if window else longest
    splits, smallest = split_shape(rows, num_kv_heads, most, tile, processors)
    stages = DEEP_STAGES if splits == 1 and not _fill(rows * num_kv_heads, processors) else STAGES
    return Cut(tile, splits, smallest, stages)


def _fill(programs: int, num_sms: int) -> bool:
    """Whether about as many programs as fit are there without splits."""
    return programs >= FULL * RESIDENT * num_sms


def split_shape(rows: int, num_kv_heads: int, max_keys: int, tile: int, num_sms: int) -> tuple[int, int]:
    """(splits of a row at most, keys of a split at least) for a device of `num_sms` multiprocessors.

    Few rows: one wave of resident programs, down to one tile each. Rows that occupy every multiprocessor by
    themselves: splits only even out rows of different lengths, so they are long. Rows that fill them: none
    has more than LONGEST_SPLIT keys, and a row without splits takes a tenth less time than one that may have
    some.
    """
    programs = rows * num_kv_heads
    if programs < num_sms:
        smallest, wanted = tile, RESIDENT * num_sms // programs
    elif _fill(programs, num_sms):
        smallest, wanted = 8 * tile, ceil_div(max_keys, LONGEST_SPLIT)
    else:
        smallest, wanted = 8 * tile, LAUNCHED * num_sms // programs
    return max(1, min(wanted, MAX_SPLITS, ceil_div(max_keys, smallest))), smallest
