"""Which steps are computed in pieces, what owners of a cache see there, and what must not be recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastkernels import LLM, SamplingParams
from fastkernels.engine.core.graph_pool import GraphPool
from fastkernels.engine.core.piecewise_graphs import (
    PieceGraphs,
    StaticInputs,
    owners_call,
    padded_call,
    piece_sizes,
)
from fastkernels.nn.context import step, use_step

PROMPTS = [[3, 4, 5], [8] * 20, [9, 10], [11] * 7, [12, 13]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


class EagerPieces(PieceGraphs):
    """Serves steps as on CUDA: all but the owners sees a padded step and its slots alone."""

    def __init__(self, max_tokens: int) -> None:
        super().__init__(GraphPool(torch.device("cpu")), max_tokens)
        self.pool.disabled = None
        self.pool.warm_up = lambda function: function()  # type: ignore[method-assign]
        self.counts: list[tuple[int, int]] = []

    def _record(self, runner: Any, size: int) -> Any:
        static, shapes = self._tried(runner, size)

        def forward(input_ids_T: Tensor, positions_T: Tensor) -> Tensor:
            count, now, done = len(input_ids_T), step(), 0
            self.counts.append((count, size))
            static.take(input_ids_T, positions_T, now.slots_GT)

            def between(call: Any, *args: Any, **kwargs: Any) -> Tensor:
                nonlocal done
                out_T = torch.full_like(shapes[done], float("nan"), device="cpu")
                done += 1
                with use_step(now):
                    padded_call(call, count, out_T, *args, **kwargs)
                return out_T

            with use_step(static), owners_call(runner.model, between):  # type: ignore[arg-type]
                hidden_TD = runner.model(static.input_ids_T, static.positions_T)
            assert done == len(shapes)
            assert not hidden_TD.isnan().any()
            return hidden_TD[:count]

        return forward


def make(model: str = "llama", **kwargs: Any) -> LLM:
    return LLM(model, **{"config": "tiny", "device": "cpu", "max_num_seqs": 5, **kwargs})


def in_pieces(llm: LLM) -> EagerPieces:
    llm.runner.pieces = pieces = EagerPieces(llm.limits.max_tokens)
    return pieces


def texts(llm: LLM) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(PROMPTS, GREEDY)]


def test_sizes_reach_the_most_tokens_with_little_padding():
    assert piece_sizes(16) == [16]
    assert piece_sizes(40) == [16, 24, 32, 40]
    sizes = piece_sizes(1024)
    assert (sizes[0], sizes[-1]) == (16, 1024)
    for tokens in range(16, 1025):
        size = next(s for s in sizes if s >= tokens)
        assert size - tokens < size / 3


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("llama", "tiny"),
        ("llama", "tiny-qwen3"),
        ("llama", "tiny-mistral"),
        ("mixtral", "tiny"),
        ("gemma4", "tiny"),
        ("gla", "tiny"),
        ("jamba", "tiny"),
        ("mamba", "tiny"),
        ("mamba2", "tiny"),
        ("retnet", "tiny"),
        ("rwkv7", "tiny"),
    ],
)
@pytest.mark.parametrize("engine", [{}, {"max_num_batched_tokens": 22}], ids=["whole", "chunked"])
def test_greedy_text_in_pieces_is_that_of_whole_forwards(model, config, engine):
    exact, cut = make(model, config=config, **engine), make(model, config=config, **engine)
    pieces = in_pieces(cut)
    assert texts(cut) == texts(exact)
    stats = cut.stats()
    assert stats["piecewise_replays"] == len(pieces.counts) > 0
    assert any(count < size for count, size in pieces.counts)
    assert stats["piecewise_replays"] + sum(stats["eager_steps"].values()) == stats["steps"]
    assert set(stats["eager_steps"]) == {"no graphs on cpu"}  # decode steps


def test_long_steps_and_requests_with_a_source_run_eagerly_and_say_so():
    llm = make(max_num_batched_tokens=64)
    pieces = in_pieces(llm)
    pieces.sizes = piece_sizes(24)
    texts(llm)
    assert "step with prefill rows, more than 24 tokens" in llm.stats()["eager_steps"]
    whisper = LLM("whisper", config="tiny", device="cpu", max_num_seqs=2)
    in_pieces(whisper)
    clip = torch.from_numpy(np.random.default_rng(0).normal(size=4000).astype(np.float32)) * 0.1
    whisper.generate(
        {"prompt_token_ids": [1, 2], "multi_modal_data": {"audio": clip}},
        SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True),
    )
    assert whisper.stats()["eager_steps"]["requests with a source begin"] == 1


def test_what_is_recorded_may_ask_for_slots_alone():
    static = StaticInputs(torch.zeros(16), torch.zeros(16), [torch.zeros(16)])
    with use_step(static):  # type: ignore[arg-type]
        assert step().slots_GT is static.slots_GT
        with pytest.raises(RuntimeError, match=r"without a cache reads step\(\)\.max_query_len"):
            _ = step().max_query_len


def test_failed_recording_is_counted_with_its_reason_and_harms_nothing():
    class Failing(EagerPieces):
        def _record(self, runner: Any, size: int) -> Any:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    exact, failing = make(), make()
    failing.runner.pieces = Failing(failing.limits.max_tokens)
    assert texts(failing) == texts(exact)
    assert failing.stats()["eager_steps"]["capture failed: operation not permitted"] == 1


def test_owners_are_as_before_when_the_body_ends():
    def raising(call: Any, *args: Any) -> Any:
        raise KeyError

    llm = make()
    owner = next(m for m in llm.model.modules() if hasattr(m, "entries"))
    vars(owner)["forward"] = mine = lambda *args: None
    with pytest.raises(KeyError), owners_call(llm.model, raising):
        owner.attend(torch.zeros(1))
    assert vars(owner)["forward"] is mine
    assert "attend" not in vars(owner)


def test_modules_fuse_in_pieces_as_they_do_whole():
    llm = make()
    attentions = [module for module in llm.model.modules() if hasattr(module, "rotary_emb")]
    assert attentions
    assert all(module.fuses for module in attentions)
    with owners_call(llm.model, lambda call, *args: call(*args)):
        assert all(module.fuses for module in attentions)


def test_tail_of_a_padded_call_is_zero():
    out_T = torch.full((4, 2), float("nan"))
    weight = torch.ones(3, 2)
    padded_call(lambda x_T, weight: x_T + weight[0], 3, out_T, torch.ones(4, 2), weight=weight)
    assert out_T.tolist() == [[2, 2]] * 3 + [[0, 0]]
