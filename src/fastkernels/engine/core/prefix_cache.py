"""Prefix caching: full blocks of known ids can be found again by what they hold, and shared.

    digest[i] = hash(digest[i-1], ids of block i, media in it)    names a block with all that lies before it

A block counts its holders. Without holders it is free, but a named one keeps its content until it is handed
out: unnamed blocks go first, then the one that was given up longest ago. A row that enters takes the blocks
of its longest known prefix and computes the rest, at least its last token: the choice after it needs logits.

Prompts are named when the step that computes them is planned, outputs when their row is given up; steps in
which every row decodes do nothing here. A found block may still be in the making: the stream orders its
writes before the reads of any later step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fastkernels.engine.core.cache import BlockGroup, Ints
from fastkernels.engine.core.request import Request

# No two different prefixes share a digest in practice: 2^-64 at 2^32 blocks.
_DIGEST_BYTES = 16


class SharedGroup(BlockGroup):
    """A group whose blocks have names and any number of holders."""

    def __init__(
        self, num_rows: int, max_len: int, num_blocks: int, block_size: int, window: int | None = None
    ) -> None:
        super().__init__(num_rows, max_len, num_blocks, block_size, window)
        self.holders_N = np.zeros(num_blocks, np.int64)
        self._digests: dict[int, bytes] = {}  # of named blocks
        self._named: dict[bytes, int] = {}
        self._idle: dict[int, None] = {}  # named blocks without holders, the longest unused first

    @property
    def num_free(self) -> int:
        return self._num_stacked + len(self._idle)

    def find(self, digest: bytes) -> int | None:
        return self._named.get(digest)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def attach(self, row: int, first: int, blocks: list[int]) -> None:
        """Make named blocks the entries `first` .. of an empty row."""
        held = first + len(blocks)
        self.table_RN[row, first:held] = blocks
        self.first_R[row], self.held_R[row] = first, held
        for block in blocks:
            self.holders_N[block] += 1
            self._idle.pop(block, None)

    def name(self, row: int, index: int, digest: bytes) -> None:
        """Name a row's block, unless it is freed, has a name, or another block holds the same."""
        block = int(self.table_RN[row, index])
        if block and block not in self._digests and digest not in self._named:
            self._digests[block], self._named[digest] = digest, block

    def forget(self) -> None:
        """Drop all names: the contents cannot be trusted any more."""
        idle = np.array(list(self._idle), np.int64)
        self._digests.clear()
        self._named.clear()
        self._idle.clear()
        super()._push(idle)

    def _pop(self, count: int) -> Ints:
        evicted = [self._evict() for _ in range(count - self._num_stacked)]
        blocks = np.concatenate([super()._pop(count - len(evicted)), np.array(evicted, np.int64)])
        self.holders_N[blocks] = 1
        return blocks

    def _evict(self) -> int:
        block = next(iter(self._idle))
        del self._idle[block]
        del self._named[self._digests.pop(block)]
        return block

    def _push(self, blocks: Ints) -> None:
        np.subtract.at(self.holders_N, blocks, 1)
        unheld = blocks[self.holders_N[blocks] == 0].tolist()
        # The end of a prefix is of use to fewer requests than its beginning: it is to be evicted first.
        for block in reversed(unheld):
            if block in self._digests:
                self._idle[block] = None
        super()._push(np.array([b for b in dict.fromkeys(unheld) if b not in self._digests], np.int64))


@dataclass(frozen=True, slots=True)
class Found:
    """The longest usable prefix of a request: its first `tokens` positions."""

    tokens: int
    blocks: list[list[int]]  # of each group; behind a window only those that the next query reads
    revived: list[int]  # of each group: blocks among them that count as free until they are taken


class Prefixes:
    """Finds and names blocks in all groups of a cache; their blocks hold equally many tokens."""

    def __init__(self, groups: list[SharedGroup]) -> None:
        assert len({group.block_size for group in groups}) == 1, "blocks of a digest have one size"
        self.groups, self.block_size = groups, groups[0].block_size
        self.num_asked = self.num_found = 0  # tokens of admitted requests, and those that were there

    def find(self, request: Request, length: int) -> Found:
        """What of the first `length` known ids need not be computed."""
        digests = self._digests(request, (length - 1) // self.block_size)
        known = [[group.find(digest) for digest in digests] for group in self.groups]
        count = self._longest(known)
        blocks = []
        for group, found in zip(self.groups, known):
            first = int(group.first_live(np.array(count * self.block_size)))
            blocks.append([block for block in found[first:count] if block is not None])
        revived = [sum(map(group.is_idle, held)) for group, held in zip(self.groups, blocks)]
        return Found(count * self.block_size, blocks, revived)

    def _longest(self, known: list[list[int | None]]) -> int:
        """The most blocks n such that every group has all that a query behind n blocks reads."""
        count = np.arange(1, len(known[0]) + 1)
        is_usable = np.ones(len(count), bool)
        for group, found in zip(self.groups, known):
            missing = np.array([block is None for block in found], bool)
            last_missing = np.maximum.accumulate(np.where(missing, count - 1, -1))
            is_usable &= last_missing < group.first_live(count * self.block_size)
        return int(count[is_usable].max(initial=0))

    def attach(self, row: int, found: Found) -> None:
        count = found.tokens // self.block_size
        for group, blocks in zip(self.groups, found.blocks):
            group.attach(row, count - len(blocks), blocks)

    def name(self, row: int, request: Request, begin: int, end: int) -> None:
        """Name the row's blocks that became full as positions begin .. end-1 were launched."""
        last = end // self.block_size
        digests = self._digests(request, last)
        for index in range(begin // self.block_size, last):
            for group in self.groups:
                group.name(row, index, digests[index])

    def forget(self) -> None:
        for group in self.groups:
            group.forget()

    def _digests(self, request: Request, count: int) -> list[bytes]:
        """Of the first `count` blocks of the ids that the device is fed; kept with the request."""
        digests, size = request.digests, self.block_size
        if len(digests) < count:
            ids = np.array(request.known[: count * size], np.int64)
            for i in range(len(digests), count):
                before = digests[-1] if digests else b""
                begin, end = i * size, (i + 1) * size
                # Placeholders are alike whatever stands in their place.
                media = b"" if request.splice is None else request.splice.digests(begin, end)
                block = ids[begin:end].tobytes() + media
                digests.append(hashlib.blake2b(before + block, digest_size=_DIGEST_BYTES).digest())
        return digests[:count]
