"""What graphs decide on any device, and the padded decode path with a replay that computes eagerly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from fastkernels import LLM, SamplingParams
from fastkernels.engine.core.decode_graphs import Captured, DecodeGraphs, context_bounds, graph_sizes
from fastkernels.engine.core.graph_pool import GraphPool
from fastkernels.engine.core.memory import Limits, largest_steps
from fastkernels.engine.core.packing import pack_decode, padding
from fastkernels.engine.core.sampler import Choice, Variant

CPU = torch.device("cpu")
PROMPTS = [[3, 4, 5], [8] * 20, [9, 10], [11] * 7, [12, 13]]


def test_sizes_reach_the_largest_batch_with_little_padding():
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(64) == [1, 2, 4, *range(8, 65, 8)]
    sizes = graph_sizes(1000)
    assert sizes[-1] == 1000
    for rows in range(1, 1001):
        assert next(size for size in sizes if size >= rows) - rows < (8 if rows <= 120 else 16)


def test_context_bounds_end_at_the_longest_row():
    assert context_bounds(100) == [100]
    assert context_bounds(2048) == [512, 2048]
    assert context_bounds(20_000) == [512, 2048, 8192, 20_000]


def test_largest_steps_fill_the_budget_and_stay_within_rows():
    for limits in (Limits(8, 64, 100, 16), Limits(64, 2048, 32, 16), Limits(1, 16, 16, 4)):
        for plan in largest_steps(limits, 1):
            assert plan.counts_B.sum() <= max(limits.max_tokens, limits.max_rows)
            assert plan.counts_B.max() < limits.max_len
            assert plan.counts_B.min() >= 1


@dataclass
class EagerReplay:
    """Stands for a CUDA graph: computes from the static packet into the static choice."""

    compute: object
    choice: object = None

    def replay(self) -> None:
        for old, new in zip(tensors(self.choice), tensors(self.compute()), strict=True):
            old.copy_(new)


def tensors(choice: Choice) -> list[torch.Tensor]:
    return [choice.ids_S, *(choice.ranking or ())]


class PaddedGraphs(DecodeGraphs):
    """Serves decode steps as on CUDA, without capturing."""

    def __init__(self, max_rows: int, max_len: int) -> None:
        super().__init__(GraphPool(CPU), max_rows, max_len)
        self.pool.disabled = None

    def _capture(self, runner, size, context, variant):
        packet = pack_decode(padding(len(runner.rows.tables_GRN)), size, runner.shapes(variant))
        static = torch.zeros(packet.length, dtype=torch.int32)
        packet.write(static.numpy())
        graph = EagerReplay(lambda: runner.compute_decode(static, packet.sections, context, variant))
        graph.choice = graph.compute()
        return Captured(size, graph, static, graph.choice)


def make(**kwargs) -> LLM:
    return LLM("llama", **{"config": "tiny", "device": "cpu", "max_num_seqs": 5, **kwargs})


@pytest.mark.parametrize("config", ["tiny", "tiny-mistral"])
@pytest.mark.parametrize("blocks", [None, 22], ids=["roomy", "preempted"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
        SamplingParams(temperature=0.9, top_k=30, top_p=0.8, seed=4, max_tokens=30),
        SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=3),
        SamplingParams(temperature=0.0, max_tokens=30, presence_penalty=1.5, repetition_penalty=1.3),
        SamplingParams(temperature=0.9, seed=4, max_tokens=30, min_p=0.05, min_tokens=28, logprobs=2),
    ],
    ids=["greedy", "filtered", "logprobs", "penalised", "min"],
)
def test_padded_decode_steps_give_the_tokens_of_exact_ones(config, blocks, params):
    engine = {"config": config, "num_kv_cache_blocks": blocks, "block_size": 4, "max_num_batched_tokens": 16}
    exact, padded = make(**engine), make(**engine)
    padded.runner.graphs = PaddedGraphs(5, 256)
    expected, found = (llm.generate(PROMPTS, params) for llm in (exact, padded))
    for want, got in zip(expected, found):
        assert got.outputs[0].token_ids == want.outputs[0].token_ids
        if params.logprobs is not None:
            for a, b in zip(got.outputs[0].logprobs, want.outputs[0].logprobs, strict=True):
                assert list(a) == list(b)
                assert [one.logprob for one in a.values()] == pytest.approx(
                    [one.logprob for one in b.values()], abs=1e-4
                )
                assert [one.rank for one in a.values()] == [one.rank for one in b.values()]
    stats = padded.stats()
    assert stats["graph_replays"] > 15
    assert stats["graph_replays"] + sum(stats["eager_steps"].values()) == stats["steps"]
    assert set(stats["eager_steps"]) == {"no graphs on cpu"}  # those with prefill rows


def test_failed_capture_is_counted_with_its_reason_and_harms_nothing():
    class Failing(PaddedGraphs):
        def _capture(self, runner, size, context, variant):
            if size == 1:
                raise RuntimeError("operation not permitted\nwhen stream is capturing")
            return super()._capture(runner, size, context, variant)

    exact, failing = make(), make()
    failing.runner.graphs = Failing(5, 256)
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (4, 4, 12, 4, 4)]
    expected, found = (llm.generate(PROMPTS, params) for llm in (exact, failing))
    assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in expected]
    assert failing.stats()["eager_steps"]["capture failed: operation not permitted"] == 8
    assert failing.stats()["graph_replays"] == 3


def test_variants_have_graphs_of_their_own_and_plain_steps_keep_the_plain_one():
    llm = make()
    llm.runner.graphs = graphs = PaddedGraphs(5, 256)
    plain = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    expected = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, plain)]
    assert {key[2] for key in graphs.captures.made} == {Variant()}
    shaped = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, frequency_penalty=0.5)
    outputs = llm.generate(PROMPTS, [shaped, *[plain] * 4])
    assert {key[2] for key in graphs.captures.made} == {Variant(), Variant(is_shaped=True)}
    assert [o.outputs[0].token_ids for o in outputs][1:] == expected[1:]
    logs = [replace(plain, logprobs=n) for n in (0, 1, 3, 4, 2)]
    llm.generate(PROMPTS, logs)
    assert {key[2].num_logprobs for key in graphs.captures.made} == {None, 4}


def test_step_ends_its_variant_with_the_last_row_that_asks():
    """min_tokens shapes the first steps only: the others replay the plain graph."""
    llm = make()
    llm.runner.graphs = PaddedGraphs(5, 256)
    params = SamplingParams(temperature=0.0, max_tokens=12, min_tokens=5)
    variants = []
    replay = llm.runner._replay
    llm.runner._replay = lambda plan, variant: variants.append(variant) or replay(plan, variant)
    llm.generate([3, 4], params)
    assert [variant.is_shaped for variant in variants[:8]] == [True] * 4 + [False] * 4


def test_variant_that_cannot_be_captured_is_counted():
    class Failing(PaddedGraphs):
        def _capture(self, runner, size, context, variant):
            if variant.is_shaped:
                raise RuntimeError("no memory")
            return super()._capture(runner, size, context, variant)

    exact, failing = make(), make()
    failing.runner.graphs = Failing(5, 256)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, presence_penalty=1.0)
    expected, found = (llm.generate(PROMPTS, params) for llm in (exact, failing))
    assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in expected]
    assert failing.stats()["eager_steps"]["capture failed: no memory"] == 7
