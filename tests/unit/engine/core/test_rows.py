"""The packet and the inputs that the device makes from it, against a row-by-row construction."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

from fastkernels.engine.core.arrivals import Arrivals
from fastkernels.engine.core.cache import BlockCache, BlockGroup
from fastkernels.engine.core.packet import Packet, Uploader
from fastkernels.engine.core.packing import pack, pack_decode, padding, split
from fastkernels.engine.core.plan import Plan, Sampled
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.rows import DeviceRows
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.scheduler import Scheduler
from fastkernels.kernels import plans
from fastkernels.nn.context import prefill_starts, use_step

CPU = torch.device("cpu")
MAX_LEN, SIZES = 64, (4, 2)


class Bench:
    """A scheduler with two groups and the device rows that follow it."""

    def __init__(self, max_tokens: int = 24) -> None:
        groups = [BlockGroup(6, MAX_LEN, 100, SIZES[0]), BlockGroup(6, MAX_LEN, 100, SIZES[1], window=5)]
        self.scheduler = Scheduler(BlockCache(groups), 5, MAX_LEN, max_tokens)
        self.arrivals = Arrivals(self.scheduler.ledger)
        self.rows = DeviceRows(6, MAX_LEN, list(SIZES), CPU)

    def add(self, serial: int, prompt: list[int], **kwargs) -> None:
        sampling = SamplingParams(temperature=0.5 + serial, top_k=serial, top_p=0.25, seed=serial)
        seed = -(2**62) + serial
        self.scheduler.add(
            Request(serial, prompt, sampling, seed, max_tokens=kwargs.pop("max_tokens", 9), **kwargs)
        )

    def plan(self) -> Plan:
        plan = self.scheduler.plan()
        assert plan is not None
        return plan

    def inputs(self, plan: Plan):
        packet, extent = pack(plan)
        return self.rows.inputs(split(Uploader(CPU).send(packet), packet.sections), extent)

    def assert_inputs(self, plan: Plan, inputs) -> None:
        positions = [range(s, s + n) for s, n in zip(plan.starts_B.tolist(), plan.counts_B.tolist())]
        assert inputs.positions_T.tolist() == [p for row in positions for p in row]
        known = self.rows.tokens_RL
        assert inputs.input_ids_T.tolist() == [
            int(known[r, p]) for r, ps in zip(plan.rows_B, positions) for p in ps
        ]
        ends = plan.starts_B + plan.counts_B
        step = inputs.step
        assert step.seq_lens_B.tolist() == ends.tolist()
        assert step.query_starts_B1.tolist() == [0, *np.cumsum(plan.counts_B).tolist()]
        assert step.max_seq_len >= ends.max()
        for g, (group, size) in enumerate(zip(self.scheduler.cache.groups, SIZES)):
            table = step.block_tables_GBN[g]
            expected = []
            for b, (row, ps) in enumerate(zip(plan.rows_B, positions)):
                live = range(int(group.first_R[row]), int(group.held_R[row]))
                assert table[b, live].tolist() == group.table_RN[row, live].tolist()
                expected += [int(group.table_RN[row, p // size]) * size + p % size for p in ps]
            assert step.slots_GT[g].tolist() == expected
            assert step.slots_GT[g].min() >= size, "a real token in the null block"
        with use_step(step):
            starts_B1 = prefill_starts(step.query_starts_B1, step.num_decodes)
            prefills_B = step.seq_lens_B[step.num_decodes :]
            with mock.patch.object(torch.Tensor, "cpu", side_effect=AssertionError("waits for the device")):
                prefills = [prefills_B] if len(prefills_B) else []
                for lengths in (step.query_starts_B1, step.seq_lens_B, starts_B1, *prefills):
                    assert torch.equal(plans.on_host(lengths), lengths)
        sampled = np.flatnonzero(plan.samples_B)
        last = range(step.query_starts_B1[-1]) if inputs.last_S is None else inputs.last_S.tolist()
        assert list(last) == [int(step.query_starts_B1[b + 1]) - 1 for b in sampled]
        assert inputs.rows_S.tolist() == plan.rows_B[sampled].tolist()
        assert inputs.targets_S.tolist() == ends[sampled].tolist()


def test_inputs_of_mixed_and_decode_steps():
    bench = Bench()
    for serial, length in enumerate([3, 20, 7, 1]):
        bench.add(serial, list(range(10 * serial + 10, 10 * serial + 10 + length)))
    shapes = set()
    for number in range(12):
        plan = bench.plan()
        shapes.add((plan.num_decodes, len(plan.rows_B), bool(plan.admitted)))
        inputs = bench.inputs(plan)
        bench.assert_inputs(plan, inputs)
        ids = torch.arange(len(inputs.rows_S)) + 100 + number
        bench.rows.write_back(inputs, ids)
        written = bench.rows.tokens_RL[inputs.rows_S, inputs.targets_S]
        assert written.tolist() == ids.tolist()
        bench.arrivals.retire(plan, Sampled(ids.numpy()))
        if bench.scheduler.ledger.is_idle:
            break
    assert {decodes == rows for decodes, rows, _ in shapes} == {True, False}
    assert any(0 < decodes < rows for decodes, rows, _ in shapes), "no mixed step was seen"


def test_sampling_parameters_arrive_at_their_rows():
    bench = Bench()
    for serial in range(3):
        bench.add(serial, [5, 6])
    inputs = bench.inputs(bench.plan())
    sampling = bench.rows.sampling(inputs)
    assert sampling.temperature_S.tolist() == [0.5, 1.5, 2.5]
    assert sampling.top_k_S.tolist() == [0, 1, 2]
    assert sampling.top_p_S.tolist() == [0.25] * 3
    assert sampling.seeds_S.tolist() == [-(2**62) + i for i in range(3)]
    assert sampling.positions_S.tolist() == [2, 2, 2]


def test_forced_rows_keep_the_ids_they_were_given():
    bench = Bench()
    bench.add(0, [5, 6], max_tokens=3, forced=[40, 41, 42])
    bench.add(1, [5, 6], max_tokens=3)
    plan = bench.plan()
    inputs = bench.inputs(plan)
    bench.rows.write_back(inputs, torch.tensor([9, 9]))
    forced, free = plan.rows_B.tolist()
    assert bench.rows.tokens_RL[forced, :5].tolist() == [5, 6, 40, 41, 42]
    assert bench.rows.tokens_RL[free, :3].tolist() == [5, 6, 9]


@pytest.mark.parametrize("padded", [4, 6])
def test_padded_decode_step_equals_the_exact_one(padded):
    """What a graph computes from: real rows as in the exact step, padding on the null row with an empty
    cache."""
    exact, graph = Bench(), Bench()
    for bench in (exact, graph):
        for serial in range(4):
            bench.add(serial, list(range(3 + serial)))
        bench.rows.write_back(bench.inputs(bench.plan()), torch.full((4,), 77))
    for _ in range(6):
        plan, same = exact.plan(), graph.plan()
        assert plan.is_decode
        want = exact.inputs(plan)
        packet = pack_decode(same, padded)
        assert packet.sections == pack_decode(padding(2), padded).sections, "the layout depends on the plan"
        got = graph.rows.decode_inputs(split(Uploader(CPU).send(packet), packet.sections), MAX_LEN)
        count = len(plan.rows_B)
        assert torch.equal(got.input_ids_T[:count], want.input_ids_T)
        assert torch.equal(got.positions_T[:count], want.positions_T)
        assert torch.equal(got.targets_S[:count], want.targets_S)
        assert torch.equal(got.step.seq_lens_B[:count], want.step.seq_lens_B)
        for g in range(2):
            width = want.step.block_tables_GBN[g].shape[1]
            assert torch.equal(got.step.block_tables_GBN[g][:count, :width], want.step.block_tables_GBN[g])
            assert torch.equal(got.step.slots_GT[g][:count], want.step.slots_GT[g])
            assert got.step.slots_GT[g][count:].tolist() == [0] * (padded - count)
        assert got.step.seq_lens_B[count:].tolist() == [0] * (padded - count)
        for bench, inputs in ((exact, want), (graph, got)):
            bench.rows.write_back(inputs, torch.full((len(inputs.rows_S),), 78))
    assert torch.equal(exact.rows.tokens_RL[1:], graph.rows.tokens_RL[1:])


def test_packet_sections_can_be_viewed_as_wider_types():
    packet = Packet()
    packet.add("a", np.array([1, 2, 3]))
    packet.add("b", np.array([2**40, -5]), np.int64)
    packet.add("c", np.array([0.5]), np.float32)
    parts = split(Uploader(CPU).send(packet), packet.sections)
    assert parts["a"].tolist() == [1, 2, 3]
    assert parts["b"].view(torch.int64).tolist() == [2**40, -5]
    assert parts["c"].view(torch.float32).tolist() == [0.5]
