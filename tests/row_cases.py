"""Random decode steps for the two ways to compute a step's ends: index operations and Triton kernels."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.engine.core.cache import TableDiff
from fastkernels.engine.core.outbox import SLOTS
from fastkernels.engine.core.packet import Uploader
from fastkernels.engine.core.packing import pack_decode, split
from fastkernels.engine.core.plan import Plan
from fastkernels.engine.core.rows import DeviceRows

MAX_LEN = 4100  # blocks of 2: more table entries than a program gathers
# Block sizes of the groups: none (a model of states), one, several, among them no power of two.
SIZES = ([], [16], [2, 16], [3, 64, MAX_LEN])


def device_rows(num_rows: int, sizes: list[int], device: str, seed: int) -> DeviceRows:
    """Rows in the middle of their lives; the null row has an empty table and is not frozen."""
    generator = torch.Generator().manual_seed(seed)
    rows = DeviceRows(num_rows, MAX_LEN, sizes, torch.device(device))
    for table_RN in rows.tables_GRN:
        table_RN[1:] = torch.randint(1, 9999, table_RN[1:].shape, generator=generator).int()
    rows.tokens_RL.copy_(torch.randint(0, 9999, rows.tokens_RL.shape, generator=generator))
    rows.temperature_R.copy_(torch.rand(num_rows, generator=generator))
    rows.top_p_R.copy_(torch.rand(num_rows, generator=generator))
    rows.top_k_R.copy_(torch.randint(0, 99, (num_rows,), generator=generator))
    rows.seeds_R.copy_(torch.randint(-(2**62), 2**62, (num_rows,), generator=generator))
    rows.frozen_R[1:] = torch.rand(num_rows - 1, generator=generator) < 0.3
    rows.shift_R[1:] = torch.randint(-99, 99, (num_rows - 1,), generator=generator).int()
    return rows


def decode_plan(num_rows: int, count: int, sizes: list[int], bound: int, seed: int) -> Plan:
    """`count` of the rows at positions below `bound`, with room for what they sample. Two thirds of them get
    a block, most at their position, some at another place of the table, in any order."""
    rng = np.random.default_rng(seed)
    rows_B = rng.permutation(np.arange(1, num_rows))[:count]
    starts_B = rng.integers(1, bound - 1, count)
    tables = []
    for size in sizes:
        given = rng.permutation(count)[: -(-2 * count // 3)]
        places = starts_B[given] // size
        places[::4] = rng.integers(0, -(-bound // size), len(places[::4]))
        tables.append(TableDiff(rows_B[given], places, rng.integers(10_000, 20_000, len(given))))
    ones = np.ones(count, np.int64)
    return Plan(rows_B, starts_B, ones, ones.astype(bool), rows_B, count, tables, [])


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal tensors of equal dtypes and shapes in two records of the same kind."""
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype, where
        assert a.is_contiguous() == b.is_contiguous(), where
        assert torch.equal(a, b), where
    elif is_dataclass(a):
        for field in fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name), f"{where}.{field.name}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


def check_decode_step(
    device: str, sizes: list[int], count: int, padded: int, bound: int, seed: int = 0
) -> None:
    """Both ways give the same inputs, tables, sampling parameters and ids of the next step."""
    num_rows = padded + 3
    plan = decode_plan(num_rows, count, sizes, bound, seed)
    packet = pack_decode(plan, padded, slot=1 + seed % SLOTS)
    sections = split(Uploader(torch.device(device)).send(packet), packet.sections)
    plain, fused = (device_rows(num_rows, sizes, device, seed) for _ in range(2))
    want = plain.decode_inputs_in_torch(sections, bound)
    got = fused.decode_inputs(sections, bound)
    assert got.parameters is not None, "not the kernel"
    assert_same(plain.sampling(want), fused.sampling(got))
    for name in ("input_ids_T", "positions_T", "step", "last_S", "rows_S", "targets_S", "shape"):
        assert_same(getattr(want, name), getattr(got, name), name)
    assert_same(plain.tables_GRN, fused.tables_GRN, "tables")
    ids_S = torch.randint(0, 9999, (padded,), generator=torch.Generator().manual_seed(seed)).to(device)
    ids_S[count:] = 7  # padding writes to one place: nothing says which id stays there
    plain.write_back_in_torch(want, ids_S)
    fused.write_back(got, ids_S)
    assert_same(plain.tokens_RL, fused.tokens_RL, "tokens")
    if device == "cuda":
        torch.cuda.synchronize()
    assert plain.outbox.ids_KR.any(), "nothing for the host"
    assert_same(plain.outbox.ids_KR, fused.outbox.ids_KR, "outbox")
