"""What tests of several areas build: steps of a batch with shuffled block tables, tensors that are no arrays.

B rows · T query tokens · N blocks of the longest row · G cache groups
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from fastkernels.nn.context import Step


def make_tables(
    seq_lens: Sequence[int],
    block_size: int,
    num_blocks: int,
    generator: torch.Generator | None = None,
    groups: int = 1,
) -> list[Tensor]:
    """For each group int32 [B, N]: distinct blocks of 1..num_blocks-1 in random order, 0 behind a row's end.

    Rows get the blocks for `seq_lens` tokens: give final lengths and pass the tables to the `make_step` of
    each step.
    """
    needed = [-(-length // block_size) for length in seq_lens]
    if sum(needed) > num_blocks - 1:
        raise ValueError(f"{sum(needed)} blocks are needed, {num_blocks} with the null block are too few")
    tables_GBN = []
    for _ in range(groups):
        blocks = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
        table_BN = torch.zeros(len(needed), max(needed, default=0), dtype=torch.int32)
        for row, count in enumerate(needed):
            table_BN[row, :count] = torch.tensor([blocks.pop() for _ in range(count)], dtype=torch.int32)
        tables_GBN.append(table_BN)
    return tables_GBN


def make_positions(query_lens: Sequence[int], seq_lens: Sequence[int]) -> Tensor:
    """int64 [T]: where each query token sits in its row."""
    pairs = zip(query_lens, seq_lens, strict=True)
    return torch.cat([torch.arange(length - query, length) for query, length in pairs])


def make_step(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    block_size: int = 16,
    num_blocks: int = 64,
    generator: torch.Generator | None = None,
    groups: int = 1,
    tables: list[Tensor] | None = None,
    device: torch.device | str = "cpu",
    rows: Sequence[int] | None = None,
) -> Step:
    """The step that stores and attends `query_lens` new tokens of rows that then hold `seq_lens` tokens.

    rows: where the requests' states lie, 1, 2, .. if not given.
    Rows with query_len 1 and seq_len > 1 are decode rows and must come first.
    """
    is_decode = [query == 1 and length > 1 for query, length in zip(query_lens, seq_lens, strict=True)]
    if is_decode != sorted(is_decode, reverse=True):
        raise ValueError("decode rows must come before prefill rows")
    if tables is None:
        tables = make_tables(seq_lens, block_size, num_blocks, generator, groups)
    num_decodes = sum(is_decode)
    query_lens_B = torch.tensor(query_lens, dtype=torch.int64)
    query_starts_B1 = torch.zeros(len(query_lens) + 1, dtype=torch.int32)
    query_starts_B1[1:] = query_lens_B.cumsum(0)
    positions_T = make_positions(query_lens, seq_lens)
    rows_T = torch.repeat_interleave(torch.arange(len(query_lens)), query_lens_B)
    slots_GT = [
        table[rows_T, positions_T // block_size].to(torch.int64) * block_size + positions_T % block_size
        for table in tables
    ]
    rows = range(1, len(seq_lens) + 1) if rows is None else rows
    begun = [row for row, query, length in zip(rows, query_lens, seq_lens) if query == length]
    return Step(
        query_starts_B1=query_starts_B1.to(device),
        seq_lens_B=torch.tensor(seq_lens, dtype=torch.int32).to(device),
        rows_B=torch.tensor(rows).to(device),
        block_tables_GBN=[table.to(device) for table in tables],
        slots_GT=[slots.to(device) for slots in slots_GT],
        num_decodes=num_decodes,
        max_query_len=max(query_lens[num_decodes:], default=0),
        max_seq_len=max(seq_lens),
        begun_A=torch.tensor(begun).to(device) if begun else None,
    )


def nested() -> Tensor:
    """A tensor that has no shape, not even to be told."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype
        return torch.nested.nested_tensor([torch.zeros(3, 3), torch.zeros(4, 3)])


def quantized() -> Tensor:
    """A tensor whose integers stand for floats."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        return torch.quantize_per_tensor(torch.zeros(8), 0.1, 0, torch.qint8)
