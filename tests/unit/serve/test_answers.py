"""From token events to what readers get, without an engine: slow readers, stop strings, refusals, the end."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from fastkernels import SamplingParams
from fastkernels.engine.core.request import Logprob
from fastkernels.engine.media.text import Text
from fastkernels.errors import RequestError
from fastkernels.serve import bench
from fastkernels.serve.answers import Answers, Asked
from fastkernels.serve.engine_client import EngineEnded
from fastkernels.serve.messages import Grown, Refused
from fastkernels.serve.metrics import Metrics
from tests.unit.engine.test_llm import tokenizer


class FakeEngine:
    """Takes requests; its events come by hand."""

    failure = RuntimeError("it broke")

    def __init__(self) -> None:
        self.asked, self.takers, self.aborted = [], [], []

    def add(self, prompt, sampling, streamed, take) -> str:
        self.asked.append((prompt, sampling, streamed))
        self.takers.append(take)
        return str(len(self.takers) - 1)

    def abort(self, id: str) -> None:
        self.aborted.append(id)

    def grow(self, place: int, *ids: int, end: str | None = None) -> None:
        self.takers[place](Grown(str(place), 2, 0, list(ids), [{i: Logprob(-1.0, 1)} for i in ids], end))


def answers(engine: FakeEngine, streamed: bool = True, **params) -> Answers:
    sampling = SamplingParams(**{"max_tokens": 9, "logprobs": 0, **params})
    metrics = Metrics()
    made = Answers(engine, Text(tokenizer(), None), metrics, [Asked([3, 4])], sampling, streamed)  # pyright: ignore
    made.metrics = metrics  # pyright: ignore
    return made


def test_what_came_while_a_reader_was_slow_is_one_piece() -> None:
    async def body() -> None:
        engine = FakeEngine()
        asked = answers(engine, n=2, seed=7)
        assert [(sampling.n, sampling.seed) for _, sampling, _ in engine.asked] == [(1, 7), (1, 8)]
        pieces = asked.pieces()
        engine.grow(1, 5)
        place, first = await anext(pieces)
        assert (place, first.outputs[0].text, first.finished) == (1, " w5", False)
        for token in (6, 7, 8):
            engine.grow(1, token)
        engine.grow(1, 9, end="length")
        engine.grow(0, 1, end="length")
        rest = [(place, output.outputs[0]) async for place, output in pieces]
        assert [(place, one.text, one.token_ids, len(one.logprobs)) for place, one in rest] == [
            (0, " w1", [1], 1),
            (1, " w6 w7 w8 w9", [6, 7, 8, 9], 4),
        ]
        assert (asked.usage.prompt, asked.usage.completion) == (2, 6)

    asyncio.run(body())


@pytest.mark.parametrize("streamed", [True, False])
def test_a_stop_string_ends_the_answer_here_and_in_the_engine(streamed: bool) -> None:
    async def body() -> None:
        engine = FakeEngine()
        asked = answers(engine, streamed, stop="w7")
        (_, sampling, is_streamed), *_ = engine.asked
        assert (sampling.stop, sampling.detokenize, is_streamed) == (None, False, True)
        engine.grow(0, 6, 7, 8)  # the engine went on by a token
        (output,) = await asked.whole()
        assert (output.outputs[0].text, output.outputs[0].token_ids) == (" w6 ", [6, 7])
        assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "w7")
        assert engine.aborted == ["0"]
        asked.close()
        assert engine.aborted == ["0"], "it has ended"
        assert asked.metrics.answers == {"stop": 1}  # pyright: ignore

    asyncio.run(body())


def test_a_stop_token_has_no_text() -> None:
    async def body() -> None:
        engine = FakeEngine()
        asked = answers(engine, stop_token_ids=[9])
        engine.grow(0, 6)
        engine.grow(0, 9, end="stop")
        (output,) = await asked.whole()
        assert (output.outputs[0].text, output.outputs[0].stop_reason) == (" w6", 9)

    asyncio.run(body())


def test_a_refusal_and_the_end_of_the_engine_reach_who_waits() -> None:
    async def body() -> None:
        for event, kind, says in (
            (Refused("0", "too long"), RequestError, "too long"),
            (None, EngineEnded, "it broke"),
        ):
            engine = FakeEngine()
            asked = answers(engine)
            waiting = asyncio.ensure_future(asked.begun())
            await asyncio.sleep(0)
            engine.takers[0](event)
            with pytest.raises(kind, match=says):
                await waiting
            with pytest.raises(kind, match=says):
                await asked.whole()
            with pytest.raises(kind, match=says):
                _ = [piece async for piece in asked.pieces()]
        with pytest.raises(RequestError, match="stop needs a tokenizer"):
            Answers(FakeEngine(), Text(None, None), Metrics(), [Asked([3])], SamplingParams(stop="a"), True)  # pyright: ignore

    asyncio.run(body())


def test_who_leaves_aborts_what_has_not_ended() -> None:
    engine = FakeEngine()
    asked = answers(engine, n=3)
    engine.grow(1, 5, end="length")
    engine.aborted.clear()
    asked.close()
    asked.close()
    assert engine.aborted == ["0", "2"]
    assert asked.metrics.answers == {"length": 1, "abort": 2}  # pyright: ignore


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 16.0])
def test_gaps_have_the_rate_and_the_burstiness_that_was_asked_for(burstiness: float) -> None:
    gaps = bench.gaps_s(20_000, 50.0, burstiness, np.random.default_rng(0))
    assert gaps.sum() == pytest.approx(400)
    # A gamma distribution of this shape: deviation / mean is 1 / sqrt(shape).
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    assert not bench.gaps_s(3, float("inf"), burstiness, np.random.default_rng(0)).any()


def test_figures_of_readers_are_those_of_their_definitions() -> None:
    load = bench.Load(3, 5, 3, goodput={"ttft": 150, "tpot": 110}, percentiles=(50.0,))
    seen = [
        bench.Seen(0.0, [0.1, 0.2, 0.3], 3),
        bench.Seen(1.0, [1.2, 1.3, 1.4], 3),  # its first token is late
        bench.Seen(1.0, problem="status 503"),
    ]
    result = bench._result(load, float("inf"), seen, 2.0)
    assert json.loads(json.dumps(result)) == result
    assert (result["completed"], result["failed"], result["problems"]) == (2, 1, ["status 503"])
    assert result["request_goodput"] == 0.5
    assert result["output_throughput"] == 3.0
    for name, ms in (("ttft", 150), ("tpot", 100), ("itl", 100), ("e2el", 350)):
        assert result[f"mean_{name}_ms"] == pytest.approx(ms)
        assert result[f"p50_{name}_ms"] == pytest.approx(ms)
