"""pi0 as callers ask it: masks, padding, company, refusals, graphs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels import Model
from fastkernels.errors import RequestError
from tests.unit.engine.test_encoder import replaying

CHUNK, DIM, VOCAB = 5, 8, 200


def policy(**options: Any) -> Model:
    return Model("pi0", config="tiny", device="cpu", **options)


@lru_cache
def shared() -> Model:
    return policy()


def observation(seed: int, cameras: int = 2, tokens: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "state": torch.randn(DIM, generator=generator),
        "input_ids": torch.randint(0, VOCAB, (tokens,), generator=generator),
        "pixel_values": torch.randint(0, 256, (cameras, 56, 56, 3), dtype=torch.uint8, generator=generator),
        "noise": torch.randn(CHUNK, DIM, generator=generator),
    }


def actions(model: Model, requests: list[dict[str, Any]]) -> list[Tensor]:
    return [answer["actions"] for answer in model.run(requests)]


def test_observations_of_one_form_share_a_launch_and_equal_single_ones() -> None:
    asked = [observation(0), observation(1, cameras=1), observation(2), observation(3, tokens=3)]
    together, alone = policy(), policy(max_batch=1)
    found, wanted = actions(together, asked), actions(alone, asked)
    assert sorted(together.stages["sample_actions"].batch_sizes) == [1, 1, 2]
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.shape, ours.dtype) == ((CHUNK, DIM), torch.float32)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert (found[0] - found[2]).abs().max() > 0.1, "observations must differ"


def test_what_is_masked_is_as_if_it_were_not_there() -> None:
    """Whatever stands in it. A short state is filled with zeros, ten steps are not four."""
    model, one = policy(), observation(0)
    (plain,) = actions(model, [one])
    for filling in (0, 199):
        padded = one | {
            "input_ids": torch.cat((one["input_ids"], torch.full((3,), filling))),
            "attention_mask": torch.arange(8) < 5,
            "pixel_values": torch.cat((one["pixel_values"], one["pixel_values"][:1] ^ filling)),
            "pixel_attention_mask": torch.tensor([True, True, False]),
        }
        assert torch.equal(actions(model, [padded])[0], plain)
    short = one | {"state": one["state"][:3]}
    long = one | {"state": torch.cat((one["state"][:3], torch.zeros(DIM - 3)))}
    assert torch.equal(*actions(model, [short, long]))
    assert (actions(model, [one | {"num_steps": 10}])[0] - plain).abs().max() > 1e-4


def test_a_seed_draws_the_noise() -> None:
    model, one = policy(), observation(0)
    del one["noise"]
    first, again, other = actions(model, [one, one | {"seed": 0}, one | {"seed": 1}])
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 0.1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pixel_values": torch.zeros(2, 56, 70, 3, dtype=torch.uint8)}, r"uint8 .*56, 56, 3\], not uint8"),
        ({"pixel_values": torch.zeros(2, 56, 56, 3)}, r"must be uint8 \[cameras, 56, 56, 3\], not"),
        ({"pixel_values": torch.zeros(0, 56, 56, 3, dtype=torch.uint8)}, "pixel_values is empty"),
        ({"pixel_attention_mask": torch.tensor([False, False])}, "all of it is masked"),
        ({"pixel_attention_mask": torch.tensor([True])}, r"pixel_attention_mask must be booleans \[2\]"),
        ({"pixel_values": torch.zeros(600, 56, 56, 3, dtype=torch.uint8)}, "600 cameras, .* has 8192"),
        ({"input_ids": torch.tensor([2, 200])}, "input_ids has 200: tokens are 0 .. 199"),
        ({"input_ids": torch.tensor([2, -1])}, "input_ids has -1"),
        ({"input_ids": torch.tensor([0.5])}, "input_ids must be integers"),
        ({"input_ids": torch.tensor([], dtype=torch.int64)}, "input_ids is empty"),
        ({"state": torch.zeros(9)}, "state has 9 values: the model takes 1 to 8"),
        ({"state": torch.zeros(2, 8)}, "state must be a vector of 1 to 8 floats, not"),
        ({"noise": torch.zeros(8)}, r"noise must be floats \[\d+, 8\], not"),
        ({"state": torch.tensor([float("nan")])}, "state has values that are not finite"),
        ({"noise": torch.zeros(4, 8)}, r"noise has the shape \[4, 8\]: the model takes \[5, 8\]"),
        ({"num_steps": 0}, "num_steps must be an integer from 1 to 1000"),
    ],
)
def test_refused_observations_do_no_harm(change: dict[str, Any], says: str) -> None:
    model, good = shared(), observation(0)
    (wanted,) = actions(model, [good])
    refused, found = model.run([observation(1) | change, good], errors="return")
    assert isinstance(refused, RequestError)
    with pytest.raises(RequestError, match=says):
        raise refused
    assert torch.equal(found["actions"], wanted)


def test_graphs_replay_with_their_own_observations() -> None:
    plain, replayed = policy(), replaying(policy())
    for seed in range(4):
        asked = [observation(seed), observation(seed + 10)]
        for ours, theirs in zip(actions(replayed, asked), actions(plain, asked), strict=True):
            assert torch.equal(ours, theirs)
