"""Penalties, min_tokens and min_p against transformers' processors and against loops over the tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

from fastkernels.engine.core.packet import Packet, Uploader
from fastkernels.engine.core.packing import split
from fastkernels.engine.core.plan import Plan
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.shaping import MOST_MASKED, ROWS_AT_ONCE, RowShapes, Shape, shape_

VOCABULARY, LENGTH = 50, 24


class Bench:
    """Rows with random ids, of which some come from the prompt."""

    def __init__(self, all_params: list[SamplingParams], masked: tuple[int, ...] = ()) -> None:
        generator = torch.Generator().manual_seed(len(all_params))
        count = len(all_params)
        self.logits = torch.randn(count, VOCABULARY, generator=generator) * 4
        self.tokens = torch.randint(
            0, VOCABULARY, (count + 1, LENGTH), generator=generator, dtype=torch.int32
        )
        self.prompts = torch.randint(1, 10, (count,), generator=generator)
        self.targets = self.prompts + torch.randint(0, 14, (count,), generator=generator)
        self.params, self.shapes = all_params, RowShapes(count + 1)
        for row, params in enumerate(all_params, 1):
            prompt = self.tokens[row, : self.prompts[row - 1]].tolist()
            self.shapes.enter(row, Request(row, prompt, params, 0, 16, masked_ids=masked))

    def shaped(self) -> torch.Tensor:
        rows, packet = np.arange(1, len(self.params) + 1), Packet()
        self.shapes.add_to(packet, rows)
        shape = Shape.of(split(Uploader(torch.device("cpu")).send(packet), packet.sections))
        assert shape is not None
        logits, temperature = self.logits.clone(), torch.tensor([float(p.temperature) for p in self.params])
        shape_(logits, temperature, self.targets, torch.from_numpy(rows), self.tokens, shape)
        return logits

    def ids(self, index: int) -> tuple[list[int], list[int]]:
        """Prompt and output of a row."""
        ids = self.tokens[index + 1, : self.targets[index]].tolist()
        return ids[: self.prompts[index]], ids[self.prompts[index] :]


def test_neutral_rows_beside_others_keep_their_logits_bit_by_bit():
    bench = Bench([SamplingParams(), SamplingParams(presence_penalty=1), SamplingParams(temperature=0.0)])
    shaped = bench.shaped()
    assert torch.equal(shaped[[0, 2]], bench.logits[[0, 2]])
    assert not torch.equal(shaped[1], bench.logits[1])


@pytest.mark.parametrize("penalty", [0.5, 1.3])
def test_repetition_is_that_of_transformers(penalty):
    bench = Bench([SamplingParams(repetition_penalty=penalty)] * 7)
    shaped, process = bench.shaped(), RepetitionPenaltyLogitsProcessor(penalty)
    for i in range(7):
        prompt, output = bench.ids(i)
        ids = torch.tensor([prompt + output])
        assert torch.equal(shaped[i : i + 1], process(ids, bench.logits[i : i + 1].clone()))


def test_presence_and_frequency_count_the_output_alone():
    bench = Bench([SamplingParams(presence_penalty=0.7, frequency_penalty=-0.3)] * (2 * ROWS_AT_ONCE + 5))
    shaped = bench.shaped()
    assert any(len(set(bench.ids(i)[1])) < len(bench.ids(i)[1]) for i in range(len(shaped))), "no id repeats"
    for i, row in enumerate(shaped):
        expected = bench.logits[i].clone()
        for token in bench.ids(i)[1]:
            expected[token] += 0.3
        for token in set(bench.ids(i)[1]):
            expected[token] -= 0.7
        torch.testing.assert_close(row, expected)


def test_repetition_comes_before_the_other_penalties():
    bench = Bench([SamplingParams(presence_penalty=1.0, repetition_penalty=2.0)])
    bench.targets[:] = bench.prompts + 3
    token = bench.ids(0)[1][0]
    bench.logits[0, token] = 4.0
    assert bench.shaped()[0, token] == 4.0 / 2.0 - 1.0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_min_p_is_that_of_transformers(temperature):
    bench = Bench([SamplingParams(min_p=0.05, temperature=temperature)] * 9)
    shaped, warp = bench.shaped(), MinPLogitsWarper(0.05)
    expected = warp(None, bench.logits / temperature)
    assert torch.equal(shaped.isinf(), expected.isinf())
    assert 0 < int(shaped.isinf().sum()) < shaped.numel()
    assert torch.equal(shaped[~shaped.isinf()], bench.logits[~shaped.isinf()])


def test_stops_are_masked_before_min_tokens_and_not_after():
    bench = Bench([SamplingParams(min_tokens=5)] * 30, masked=(4, 0, 17))
    shaped = bench.shaped()
    early = bench.targets - bench.prompts < 5
    assert 0 < early.sum() < 30
    masked = shaped.isinf()
    assert torch.equal(masked.any(1), early)
    assert masked[early].sum(1).tolist() == [3] * int(early.sum())
    assert masked[early][:, [0, 4, 17]].all()
    assert torch.equal(shaped[~masked], bench.logits[~masked])


def test_more_stops_than_a_packet_holds_are_refused_by_the_array():
    with pytest.raises(ValueError, match="broadcast"):
        Bench([SamplingParams(min_tokens=1)], masked=tuple(range(MOST_MASKED + 1)))


def plan(rows: list[int], targets: list[int]) -> Plan:
    ends = np.array(targets)
    ones = np.ones(len(rows), np.int64)
    return Plan(np.array(rows), ends - 1, ones, ones.astype(bool), ones, len(rows), [], [])


def test_only_steps_with_such_a_row_are_shaped():
    shapes = RowShapes(5)
    enter = lambda row, **params: shapes.enter(row, Request(row, [1] * 10, SamplingParams(**params), 0, 16))
    enter(1)
    assert not shapes.are_needed(plan([1], [10]))
    enter(2, frequency_penalty=0.5)
    enter(3, min_tokens=4)
    assert not shapes.are_needed(plan([1], [10]))
    assert shapes.are_needed(plan([1, 2], [10, 500]))
    assert shapes.are_needed(plan([1, 3], [10, 13]))
    assert not shapes.are_needed(plan([1, 3], [10, 14])), "min_tokens is reached"
    enter(2)  # the row's next request
    assert not shapes.are_needed(plan([1, 2], [10, 10]))


def test_row_keeps_nothing_of_earlier_requests():
    """A greedy request has no use for min_p; what it leaves must not reach the next one in its row."""
    bench = Bench([SamplingParams()] * 3)
    for params in (
        SamplingParams(min_p=0.5, frequency_penalty=1, min_tokens=9, repetition_penalty=2),
        SamplingParams(min_p=0.5, temperature=0.0),
        SamplingParams(),
    ):
        bench.shapes.enter(
            2, Request(2, [1] * 4, params, 0, 16, masked_ids=(5,) if params.min_tokens else ())
        )
    assert torch.equal(bench.shaped(), bench.logits)
