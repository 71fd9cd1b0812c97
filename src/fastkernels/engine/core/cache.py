"""Host bookkeeping of the paged caches: which blocks belong to which row. No tensor is touched here.

A `BlockGroup` serves all layers with one `Paged` declaration (nn/cache.py): they share block tables, each has
its pool.

    R rows (row 0 is null) · N table entries of a row · block b of a table holds positions b*block_size ..
    +block_size-1

Block 0 is null: padding is written there and nothing reads it. All changes reach the device on one stream, in
the order of the plans, so a block that is freed here may be handed out at once: its new owner writes behind
the last read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TableDiff:
    """Entries to write into a group's block tables on the device: table[rows[i], indices[i]] = blocks[i]."""

    rows: Ints
    indices: Ints
    blocks: Ints

    @staticmethod
    def joined(*diffs: TableDiff) -> TableDiff:
        """All of them in one; no entry may be in two."""
        parts = zip(*((d.rows, d.indices, d.blocks) for d in diffs))
        return TableDiff(*(np.concatenate(part) for part in parts))


class BlockGroup:
    """Free blocks and block tables of one cache group, vectorised over rows."""

    def __init__(
        self, num_rows: int, max_len: int, num_blocks: int, block_size: int, window: int | None = None
    ) -> None:
        self.window, self.block_size, self.num_blocks = window, block_size, num_blocks
        self.table_RN = np.zeros((num_rows, -(-max_len // block_size)), np.int64)
        self.held_R = np.zeros(num_rows, np.int64)  # table entries ever filled, freed ones included
        self.first_R = np.zeros(num_rows, np.int64)  # entries below are freed: behind the window
        # A stack: the block freed last is reused first, still in L2.
        self._free = np.arange(num_blocks - 1, 0, -1)
        self._num_stacked = num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out."""
        return self._num_stacked

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    @property
    def window_blocks(self) -> int:
        """The most blocks that a row holds behind a window if it advances in small chunks."""
        assert self.window is not None
        return self.blocks_for(self.window) + 2

    def most_held(self, tokens: int) -> int:
        """The most blocks that a row of `tokens` positions holds at once if it advances in small chunks."""
        whole = self.blocks_for(tokens)
        return whole if self.window is None else min(whole, self.window_blocks)

    def need(self, rows: Ints, upto: Ints) -> Ints:
        """Blocks that each row lacks for positions < upto."""
        return np.maximum(-(-upto // self.block_size) - self.held_R[rows], 0)

    def reach(self, row: int) -> int:
        """Positions that a row could hold if it got every free block."""
        return int(self.held_R[row] + self.num_free) * self.block_size

    def first_live(self, scheduled: Ints) -> Ints:
        """The first table entry that a query at position >= scheduled can read."""
        if self.window is None:
            return np.zeros_like(scheduled)
        return np.maximum((scheduled - self.window + 1) // self.block_size, 0)

    def slide(self, rows: Ints, scheduled: Ints) -> None:
        """Free what no query at positions >= scheduled reads.

        Call before the step that starts there takes blocks: a block freed here may go to another row of that
        very step, whose writes precede this row's reads.
        """
        if self.window is None:
            return
        live = np.minimum(self.first_live(scheduled), self.held_R[rows])
        passed = live > self.first_R[rows]
        if passed.any():
            rows, live = rows[passed], live[passed]
            entries, indices = _ranges(rows, self.first_R[rows], live)
            self._push(self.table_RN[entries, indices])
            self.table_RN[entries, indices] = 0
            self.first_R[rows] = live

    def take(self, rows: Ints, upto: Ints) -> TableDiff:
        """Give every row the blocks for positions < upto. The caller has checked that they are there."""
        need = self.need(rows, upto)
        wanted = int(need.sum())
        assert wanted <= self.num_free, "blocks were promised that are not free"
        held = self.held_R[rows]
        entries, indices = _ranges(rows, held, held + need)
        blocks = self._pop(wanted)
        self.table_RN[entries, indices] = blocks
        self.held_R[rows] = held + need
        return TableDiff(entries, indices, blocks)

    def release(self, row: int) -> None:
        """Take back all blocks of a row."""
        self._push(self.table_RN[row, self.first_R[row] : self.held_R[row]])
        self.table_RN[row] = 0
        self.held_R[row] = self.first_R[row] = 0

    def held(self, rows: Ints) -> TableDiff:
        """The table entries that rows have now."""
        entries, indices = _ranges(rows, self.first_R[rows], self.held_R[rows])
        return TableDiff(entries, indices, self.table_RN[entries, indices])

    def _pop(self, count: int) -> Ints:
        """Blocks that now belong to a row."""
        self._num_stacked -= count
        return self._free[self._num_stacked : self._num_stacked + count].copy()

    def _push(self, blocks: Ints) -> None:
        """Blocks that a row gives back."""
        count = len(blocks)
        self._free[self._num_stacked : self._num_stacked + count] = blocks
        self._num_stacked += count


def _ranges(rows: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """For each row the indices begin .. end-1, flattened: (row of each index, index)."""
    count = end - begin
    before = np.cumsum(count) - count
    return np.repeat(rows, count), np.arange(int(count.sum())) + np.repeat(begin - before, count)


class BlockCache:
    """All groups of a model; a row holds blocks in every group or in none."""

    def __init__(self, groups: list[BlockGroup]) -> None:
        self.groups = groups

    @property
    def num_free(self) -> list[int]:
        return [group.num_free for group in self.groups]

    def fits_alone(self, tokens: int) -> bool:
        """Whether a request that grows to `tokens` cached positions can finish alone in the cache."""
        return all(group.most_held(tokens) < group.num_blocks for group in self.groups)

    def need(self, rows: Ints, upto: Ints) -> list[int]:
        return [int(group.need(rows, upto).sum()) for group in self.groups]

    def reach(self, row: int) -> int:
        return min(group.reach(row) for group in self.groups)

    def slide(self, rows: Ints, scheduled: Ints) -> None:
        for group in self.groups:
            group.slide(rows, scheduled)

    def held(self, rows: Ints) -> list[TableDiff]:
        return [group.held(rows) for group in self.groups]

    def take(self, rows: Ints, upto: Ints) -> list[TableDiff]:
        return [group.take(rows, upto) for group in self.groups]

    def release(self, row: int) -> None:
        for group in self.groups:
            group.release(row)
