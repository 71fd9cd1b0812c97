"""The two ends of a decode step as one Triton kernel each: what `DeviceRows` does with index operations.

    decode_inputs:  table[rows[i], indices[i]] = blocks[i]                for each diff i of each group
                    ids[p], positions[p], slots[p], tables[p] ...         of row rows[p] at place starts[p]
    write_back:     tokens[rows[s], targets[s]] = ids[s]                  unless the row is frozen
                    outbox[slot, s] = ids[s]                              in a graph, for the host

A row has at most one diff for each group (packing.py), anywhere in the packet's list. Programs of one launch
run in any order, so none reads an entry that another one writes: each looks for its row's diff itself and
puts it over what it loaded. Padding finds the diffs of padding, which write block 0 to the null row.

P rows of a decode step with its padding · S sampled rows · R rows · N table entries · G cache groups
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.engine.core.inputs import Inputs, Parameters, Rows
from fastkernels.engine.core.packing import Sections
from fastkernels.engine.core.shaping import Shape
from fastkernels.kernels.launch import ceil_div, power_of_two
from fastkernels.nn.context import Step

# Table entries of one program: two 16-byte loads for each thread of 4 warps.
ENTRIES = 1024
# The list of diffs is read whole: one length for the many small steps spares their compilation.
LEAST_DIFFS = 128
SAMPLES = 128  # rows of one program that writes ids back


@triton.jit
def _diff(row, rows, indices, blocks, num_rows, DIFFS: tl.constexpr):
    """(index, block) of the row's diff; index -1 where it has none."""
    i = tl.arange(0, DIFFS)
    there = i < num_rows
    # All three at once: loads that waited for the place of the match would double the latency.
    diff_row = tl.load(rows + i, mask=there, other=-1)
    index = tl.load(indices + i, mask=there, other=-1)
    block = tl.load(blocks + i, mask=there, other=0)
    is_mine = diff_row == row
    return tl.max(tl.where(is_mine, index, -1)), tl.max(tl.where(is_mine, block, 0))


@triton.jit(do_not_specialize=["num_rows"])
def _decode_inputs(rows, starts, tokens, shifts, row_parameters, tables, diff_rows, diff_indices, diff_blocks,
                   input_ids, positions, seq_lens, query_starts, row_ids, targets, parameters,
                   block_tables, slots, num_rows, tokens_stride, table_strides, widths,
                   SIZES: tl.constexpr, DIFFS: tl.constexpr, ENTRIES: tl.constexpr):  # fmt: skip
    """Program (p, part): a part of the tables of row p; part 0 also does what there is one of for each row.

    Tuples: row_parameters and parameters by parameter, SIZES and what belongs to tables by group.
    """
    p, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + p).to(tl.int64)
    start = tl.load(starts + p)
    place = tl.maximum(start, 0)  # padding starts at -1
    if part == 0:
        tl.store(input_ids + p, tl.load(tokens + row * tokens_stride + place).to(tl.int64))
        tl.store(positions + p, (place + tl.load(shifts + row)).to(tl.int64))
        tl.store(seq_lens + p, start + 1)
        tl.store(query_starts, 0, mask=p == 0)
        tl.store(query_starts + p + 1, (p + 1).to(tl.int32))
        tl.store(row_ids + p, row)
        tl.store(targets + p, (start + 1).to(tl.int64))
        for i in tl.static_range(len(parameters)):
            tl.store(parameters[i] + p, tl.load(row_parameters[i] + row))

    n = part * ENTRIES + tl.arange(0, ENTRIES)
    for g in tl.static_range(len(SIZES)):
        index, block = _diff(row, diff_rows[g], diff_indices[g], diff_blocks[g], num_rows, DIFFS)
        table = tables[g] + row * table_strides[g]
        is_wanted = n < widths[g]
        blocks = tl.load(table + n, mask=is_wanted, other=0)
        tl.store(block_tables[g] + p * widths[g] + n, tl.where(n == index, block, blocks), mask=is_wanted)
        if part == 0:
            at = place // SIZES[g]
            current = tl.where(at == index, block, tl.load(table + at))
            tl.store(slots[g] + p, current.to(tl.int64) * SIZES[g] + place % SIZES[g])
            tl.store(table + index, block, mask=index >= 0)


def decode_inputs(rows: Rows, sections: Sections, max_seq_len: int) -> Inputs:
    """`DeviceRows.decode_inputs` in one launch."""
    device, rows_P, groups = rows.device, sections["rows"], range(len(rows.tables_GRN))
    num_rows = len(rows_P)

    def made(length: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(length, dtype=dtype, device=device)

    ids_P, positions_P, row_ids_P, targets_P = (made(num_rows, torch.int64) for _ in range(4))
    seq_lens_P, query_starts_P1 = made(num_rows, torch.int32), made(num_rows + 1, torch.int32)
    row_parameters = (rows.temperature_R, rows.top_k_R, rows.top_p_R, rows.seeds_R)
    parameters = tuple(made(num_rows, column.dtype) for column in row_parameters)
    slots_GP = tuple(made(num_rows, torch.int64) for _ in groups)
    widths_G = tuple(
        min(ceil_div(max_seq_len, size), table_RN.shape[1])
        for size, table_RN in zip(rows.block_sizes, rows.tables_GRN)
    )
    tables_GPN = tuple(rows_P.new_empty((num_rows, width)) for width in widths_G)
    parts = ceil_div(max(widths_G, default=1), ENTRIES)
    diffs = (tuple(sections[f"table{g}.{name}"] for g in groups) for name in ("rows", "indices", "blocks"))
    _decode_inputs[(num_rows, parts)](
        rows_P, sections["starts"], rows.tokens_RL, rows.shift_R, row_parameters,
        tuple(rows.tables_GRN), *diffs,
        ids_P, positions_P, seq_lens_P, query_starts_P1, row_ids_P, targets_P, parameters,
        tables_GPN, slots_GP, num_rows, rows.tokens_RL.stride(0),
        tuple(table_RN.stride(0) for table_RN in rows.tables_GRN), widths_G,
        SIZES=tuple(rows.block_sizes), DIFFS=max(LEAST_DIFFS, power_of_two(num_rows)), ENTRIES=ENTRIES,
    )  # fmt: skip
    step = Step(
        query_starts_B1=query_starts_P1,
        seq_lens_B=seq_lens_P,
        rows_B=row_ids_P,
        block_tables_GBN=list(tables_GPN),
        slots_GT=list(slots_GP),
        num_decodes=num_rows,
        max_query_len=0,
        max_seq_len=max_seq_len,
    )
    shape = Shape.of(sections)
    slot = sections["slot"]
    return Inputs(ids_P, positions_P, step, None, row_ids_P, targets_P, shape, Parameters(*parameters), slot)


@triton.jit(do_not_specialize=["num_sampled"])
def _write_back(tokens, frozen, rows, targets, ids, outbox, slot, num_sampled, tokens_stride, ids_stride,
                outbox_stride, SAMPLES: tl.constexpr):  # fmt: skip
    s = tl.program_id(0) * SAMPLES + tl.arange(0, SAMPLES)
    there = s < num_sampled
    row = tl.load(rows + s, mask=there, other=0)
    target = tl.load(targets + s, mask=there, other=0)
    is_frozen = tl.load(frozen + row, mask=there, other=1)
    id = tl.load(ids + s * ids_stride, mask=there, other=0)
    tl.store(tokens + row * tokens_stride + target, id.to(tl.int32), mask=there & (is_frozen == 0))
    if slot is not None:
        tl.store(outbox + tl.load(slot) * outbox_stride + s, id.to(tl.int64), mask=there)


def write_back(rows: Rows, inputs: Inputs, ids_S: Tensor) -> None:
    """`DeviceRows.write_back` in one launch."""
    num_sampled = len(inputs.rows_S)
    ids_S = ids_S.expand(num_sampled)  # a sampler may be a candidate's: other shapes raise
    _write_back[(ceil_div(num_sampled, SAMPLES),)](
        rows.tokens_RL, rows.frozen_R, inputs.rows_S, inputs.targets_S, ids_S, rows.outbox.ids_KR,
        inputs.slot, num_sampled, rows.tokens_RL.stride(0), ids_S.stride(0), rows.outbox.ids_KR.stride(0),
        SAMPLES=SAMPLES,
    )  # fmt: skip
