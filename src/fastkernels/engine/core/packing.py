"""Plans as packets: which sections the host sends for a step, and in which layout.

B rows of a step · S sampled rows · A admitted rows · G cache groups
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastkernels.engine.core.cache import Ints, TableDiff
from fastkernels.engine.core.packet import Packet
from fastkernels.engine.core.plan import Admission, Plan
from fastkernels.engine.core.shaping import RowShapes

Sections = dict[str, Tensor]
_MOST_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Extent:
    """What the host knows about a step without asking the device."""

    num_rows: int
    num_tokens: int
    num_decodes: int
    num_admitted: int
    num_uploaded: int
    max_query_len: int  # of prefill rows
    max_seq_len: int  # an upper bound where the step is padded
    query_starts_B1: Tensor  # int32, on the host
    seq_lens_B: Tensor  # int32, on the host


def pack(plan: Plan, shapes: RowShapes | None = None) -> tuple[Packet, Extent]:
    """The packet of any plan, with exact lengths. shapes: where some row asks for other logits."""
    packet = Packet()
    starts_B1 = np.concatenate([[0], np.cumsum(plan.counts_B)])
    ends_B = plan.starts_B + plan.counts_B
    sampled = np.flatnonzero(plan.samples_B)
    packet.add("rows", plan.rows_B)
    packet.add("starts", plan.starts_B)
    packet.add("query_starts", starts_B1)
    packet.add("seq_lens", ends_B)
    packet.add("counts", plan.counts_B)
    packet.add("last", starts_B1[sampled + 1] - 1)
    packet.add("sampled_rows", plan.rows_B[sampled])
    packet.add("targets", ends_B[sampled])
    if plan.spliced is not None:
        packet.add("positions", plan.spliced.positions_3T.reshape(-1))
        packet.add("media", plan.spliced.index_T)
    _add_tables(packet, plan.tables)
    _add_admissions(packet, plan.admitted)
    if shapes is not None:
        shapes.add_to(packet, plan.rows_B[sampled])
    prefills = plan.counts_B[plan.num_decodes :]
    return packet, Extent(
        num_rows=len(plan.rows_B),
        num_tokens=int(starts_B1[-1]),
        num_decodes=plan.num_decodes,
        num_admitted=len(plan.admitted),
        num_uploaded=sum(len(a.tokens) for a in plan.admitted),
        max_query_len=int(prefills.max(initial=0)),
        max_seq_len=int(ends_B.max(initial=0)),
        query_starts_B1=torch.from_numpy(starts_B1.astype(np.int32)),
        seq_lens_B=torch.from_numpy(ends_B.astype(np.int32)),
    )


def pack_decode(plan: Plan, num_rows: int, shapes: RowShapes | None = None, slot: int = 0) -> Packet:
    """The packet of a decode plan padded to `num_rows`: lengths depend on `num_rows` (and on whether there
    are `shapes`) alone, as a captured graph needs. slot: of the outbox, for what is sampled.

    A decode row crosses at most one block boundary in each group; rows that cross none write block 0 to row
    0.
    """
    packet = Packet()
    packet.add("rows", _padded(plan.rows_B, num_rows))
    packet.add("starts", _padded(plan.starts_B, num_rows, fill=-1))
    packet.add("slot", np.array([slot]))
    _add_tables(
        packet,
        [
            TableDiff(*(_padded(part, num_rows) for part in (d.rows, d.indices, d.blocks)))
            for d in plan.tables
        ],
    )
    if shapes is not None:
        shapes.add_to(packet, _padded(plan.rows_B, num_rows))
    return packet


def _padded(values: Ints, length: int, fill: int = 0) -> Ints:
    result = np.full(length, fill, np.int64)
    result[: len(values)] = values
    return result


def _add_tables(packet: Packet, tables: list[TableDiff]) -> None:
    for g, diff in enumerate(tables):
        for name, values in (("rows", diff.rows), ("indices", diff.indices), ("blocks", diff.blocks)):
            packet.add(f"table{g}.{name}", values)


def _add_admissions(packet: Packet, admitted: list[Admission]) -> None:
    """Sampling parameters and known ids of the rows that are admitted."""
    if not admitted:
        return
    params = [a.request.sampling for a in admitted]
    lengths = np.array([len(a.tokens) for a in admitted])
    columns: dict[str, tuple[list, type[np.generic]]] = {
        "rows": ([a.row for a in admitted], np.int32),
        "temperature": ([0.0 if p.is_greedy else p.temperature for p in params], np.float32),
        "top_k": ([min(max(p.top_k, 0), _MOST_INT32) for p in params], np.int32),
        "top_p": ([p.top_p for p in params], np.float32),
        "seeds": ([a.request.seed for a in admitted], np.int64),
        "frozen": ([a.request.forced is not None for a in admitted], np.int32),
        "shift": ([a.request.shift for a in admitted], np.int32),
    }
    for name, (values, dtype) in columns.items():
        packet.add(f"admitted.{name}", np.array(values, dtype), dtype)
    packet.add("admitted.lengths", lengths)
    packet.add("admitted.offsets", np.cumsum(lengths) - lengths)
    packet.add("admitted.ids", np.concatenate([np.array(a.tokens, np.int32) for a in admitted]))


def split(buffer: Tensor, sections: dict[str, slice]) -> Sections:
    """The sections of a packet that lies on the device."""
    return {name: buffer[section] for name, section in sections.items()}


def padding(num_groups: int) -> Plan:
    """A decode plan without rows: padded, it computes on the null row and leaves no trace."""
    nothing = np.zeros(0, np.int64)
    return Plan(nothing, nothing, nothing, np.zeros(0, np.bool_), nothing, 0, _no_diffs(num_groups), [])


def null_plan(counts: list[int], num_groups: int) -> Plan:
    """Prefill rows of these lengths, all on the null row and the null block."""
    zeros, every = np.zeros(len(counts), np.int64), np.ones(len(counts), np.bool_)
    return Plan(zeros, zeros, np.array(counts), every, zeros - 1, 0, _no_diffs(num_groups), [])


def _no_diffs(num_groups: int) -> list[TableDiff]:
    nothing = np.zeros(0, np.int64)
    return [TableDiff(nothing, nothing, nothing) for _ in range(num_groups)]
