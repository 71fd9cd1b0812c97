"""Where the tokens of a case's batch lie in the paged caches and its requests' states in their pools, and the
integers that say so.

Each cache group has its own table: a shuffle of the pool in which no neighbours of a row adjoin in memory.
Block 0 is the null block; some blocks belong to no row. Rows of states are shuffled likewise: row 0 is null,
some belong to nobody.
B rows, T query tokens, M blocks of the longest row, N blocks of the pool, P tokens of a block.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from fastkernels.errors import BaselineError
from fastkernels.records import Batch, Case

_SPARE_SHARE = 8  # one block in eight, and at least two, belongs to no row; of rows, to no request
_SHUFFLE_REPAIRS = 10_000  # neighbours are rare in a shuffle; only pools of 2 or 3 blocks run out


def pool_blocks(batch: Batch) -> int:
    """Blocks of a pool that serves the batch: the null block, those of the rows, spare ones."""
    needed = sum(count * _blocks(seq_len, batch.block_size) for count, _, seq_len in batch.rows)
    return 1 + needed + max(2, needed // _SPARE_SHARE)


def pool_rows(batch: Batch) -> int:
    """Rows of a pool of states that serves the batch: the null row, those of the requests, spare ones."""
    requests = len(batch.seq_lens)
    return 1 + requests + max(2, requests // _SPARE_SHARE)


def case_pool_blocks(case: Case) -> int:
    """Blocks of each pool of a case: as its cache arguments say, else what its batch needs."""
    assert case.batch is not None
    for spec in case.inputs.values():
        if getattr(spec, "draw", None) == "cache":
            return spec.shape[0]  # type: ignore[union-attr]
    return pool_blocks(case.batch)


def varied(batch: Batch, seed: int) -> Batch:
    """Another step of as many requests and tokens: what goes on has less behind it, at least one token, and
    prefills come in another order. A kernel may not know the lengths from an earlier call. Images are all
    there, in the order of their grids."""
    if batch.grids:
        return batch
    rng = random.Random(seed)
    rows = [
        (1, query, seq if query == seq else rng.randint(query + 1, seq))
        for query, seq in zip(batch.query_lens, batch.seq_lens)
    ]
    decodes, prefills = rows[: batch.num_decodes], rows[batch.num_decodes :]
    rng.shuffle(prefills)
    return batch.model_copy(update={"rows": (*decodes, *prefills)})


@dataclass(frozen=True)
class PackedKeys:
    """The keys of the rows of a step, one row behind the other, as many as in the step that was varied.

    Lengths are those of the varied rows; what these have less goes to the first ones, which get no longer
    than the longest row was.
    """

    batch: Batch
    before: Batch

    @cached_property
    def key_starts(self) -> Tensor:
        """int32 [B+1]"""
        missing, longest = sum(self.before.seq_lens) - sum(self.batch.seq_lens), max(self.before.seq_lens)
        lengths = list[int]()
        for length in self.batch.seq_lens:
            lengths.append(length + min(missing, longest - length))
            missing -= lengths[-1] - length
        return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)

    @cached_property
    def places(self) -> Tensor:
        """int64 [T]: where each query token's own key lies; a row's queries are in its middle."""
        starts = self.key_starts.tolist()
        parts = [
            torch.arange(query) + begin + (end - begin - query) // 2
            for query, begin, end in zip(self.batch.query_lens, starts, starts[1:])
        ]
        return torch.cat(parts)


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


@dataclass(frozen=True)
class Layout:
    """The batch laid out in a pool of `num_blocks` blocks: a function of (batch, num_blocks, seed)."""

    batch: Batch
    num_blocks: int
    seed: int

    @cached_property
    def positions(self) -> Tensor:
        """int64 [T]: position of each query token in its row."""
        return torch.cat([torch.arange(seq - query, seq) for query, seq in self._rows])

    @cached_property
    def query_starts(self) -> Tensor:
        """int32 [B+1]"""
        lens_B = torch.tensor(self.batch.query_lens)
        return torch.cat((torch.zeros(1, dtype=torch.int64), lens_B.cumsum(0))).int()

    @cached_property
    def seq_lens(self) -> Tensor:
        """int32 [B]"""
        return torch.tensor(self.batch.seq_lens, dtype=torch.int32)

    @cached_property
    def rows(self) -> Tensor:
        """int64 [B]: where each request's state lies, in a random order."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randperm(pool_rows(self.batch) - 1, generator=generator)[: len(self._rows)] + 1

    @cached_property
    def begun(self) -> Tensor:
        """int64 [A]: those of `rows` whose requests begin in this step."""
        return self.rows[torch.tensor([query == seq for query, seq in self._rows])]

    @cached_property
    def state_kinds(self) -> tuple[Tensor, Tensor]:
        """bool [rows of the pool] each: the row is a request's; its request begins in this step."""
        is_owned, is_new = (torch.zeros(pool_rows(self.batch), dtype=torch.bool) for _ in range(2))
        is_owned[self.rows] = True
        is_new[self.begun] = True
        return is_owned, is_new

    @cached_property
    def block_tables(self) -> Tensor:
        """int32 [B, M]; entries past a row's last block name the null block."""
        counts_B = torch.tensor([_blocks(seq, self.batch.block_size) for seq in self.batch.seq_lens])
        used_BM = torch.arange(int(counts_B.max()))[None] < counts_B[:, None]
        tables_BM = torch.zeros(used_BM.shape, dtype=torch.int32)
        tables_BM[used_BM] = self._shuffled[: int(counts_B.sum())].int()
        return tables_BM

    @cached_property
    def slots(self) -> Tensor:
        """int64 [T]: block * block_size + offset of each query token."""
        row_T = torch.repeat_interleave(torch.tensor(self.batch.query_lens))
        size = self.batch.block_size
        return self.block_tables[row_T, self.positions // size].long() * size + self.positions % size

    @cached_property
    def grids(self) -> Tensor:
        """int64 [B, 2]: rows and columns of patches of each image"""
        runs = [[height, width] for count, height, width in self.batch.grids for _ in range(count)]
        return torch.tensor(runs, dtype=torch.int64).view(-1, 2)

    def held(self, with_queries: bool) -> Tensor:
        """bool [num_blocks, block_size]: entries that hold a token of a row, query tokens included or not."""
        size = self.batch.block_size
        lens_B = torch.tensor(self.batch.seq_lens)
        if not with_queries:
            lens_B -= torch.tensor(self.batch.query_lens)
        offset_BMP = torch.arange(self.block_tables.shape[1] * size).view(1, -1, size)
        held_BMP = offset_BMP < lens_B[:, None, None]
        held_NP = torch.zeros((self.num_blocks, size), dtype=torch.bool)
        real_BM = self.block_tables > 0
        held_NP[self.block_tables[real_BM].long()] = held_BMP[real_BM]
        return held_NP

    @property
    def _rows(self) -> list[tuple[int, int]]:
        return list(zip(self.batch.query_lens, self.batch.seq_lens))

    @cached_property
    def _shuffled(self) -> Tensor:
        """Every block but the null block, in an order where b is never followed by b + 1."""
        needed = sum(_blocks(seq, self.batch.block_size) for seq in self.batch.seq_lens)
        if needed >= self.num_blocks:
            raise BaselineError(
                f"The batch {self.batch.rows} needs {needed} blocks and the null block; "
                f"its pool has {self.num_blocks}"
            )
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(self.num_blocks - 1, generator=generator) + 1
        for _ in range(_SHUFFLE_REPAIRS):
            runs = (order.diff() == 1).nonzero()
            if len(runs) == 0:
                return order
            at = int(runs[0]) + 1
            other = int(torch.randint(len(order), (), generator=generator))
            order[[at, other]] = order[[other, at]]
        return order.sort(descending=True).values


Runs = tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=8)  # a trial asks for the same one for its tables, its slots and each of its caches
def _layout(rows: Runs, grids: Runs, text: int, block_size: int, num_blocks: int, seed: int) -> Layout:
    return Layout(Batch(rows=rows, grids=grids, text=text, block_size=block_size), num_blocks, seed)


def layout(batch: Batch, num_blocks: int, seed: int) -> Layout:
    """The layout of a batch; BaselineError if the pool is too small for it."""
    return _layout(batch.rows, batch.grids, batch.text, batch.block_size, num_blocks, seed)
