"""A world model as callers ask it: clips that share a launch, refusals, graphs, and frames of a clip."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels import Model
from fastkernels.errors import RequestError
from tests.unit.engine.test_encoder import replaying


def model(**options: Any) -> Model:
    return Model("oasis", config="tiny", device="cpu", **options)


def clip(frames: int, seed: int = 0, steps: int = 2) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (16, 24, 3), generator=generator, dtype=torch.uint8)
    actions = 2 * torch.rand(frames, 25, generator=generator) - 1
    return {"image": image, "actions": actions, "steps": steps, "seed": seed}


def latents(answers: list[dict[str, Tensor]]) -> list[Tensor]:
    return [answer["latents"] for answer in answers]


def test_clips_of_one_length_share_a_launch_and_equal_single_ones() -> None:
    asked = [clip(3, 0), clip(7, 1), clip(3, 2), clip(3, 3, steps=3)]
    together, alone = model(), model(max_batch=1)
    found, expected = latents(together.run(asked)), latents(alone.run(asked))
    assert sorted(together.stages["rollout"].batch_sizes) == [1, 1, 2]
    for ours, theirs, one in zip(found, expected, asked, strict=True):
        assert ours.shape == (len(one["actions"]), 4, 6, 4)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert (found[0] - found[2]).abs().max() > 0.1, "clips must differ"


def test_a_clip_is_the_beginning_of_a_longer_one_until_actions_differ() -> None:
    """Noise is drawn frame by frame."""
    long = clip(5, 4)
    other = long | {"actions": torch.cat((long["actions"][:3], -long["actions"][3:]))}
    short = long | {"actions": long["actions"][:3]}
    whole, turned, begun = latents(model().run([long, other, short]))
    for found in (turned[:3], begun):
        torch.testing.assert_close(found, whole[:3], rtol=0, atol=1e-4)
    assert (turned[3] - whole[3]).abs().max() > 0.01


def test_a_video_is_decoded_from_what_a_run_ends_with() -> None:
    face, asked = model(), [clip(2)]
    (outputs,) = face.run(asked)
    (finished,) = face.finish([outputs], asked)
    assert (finished["video"].shape, finished["video"].dtype) == ((2, 16, 24, 3), torch.float32)
    assert 0 <= finished["video"].min() < finished["video"].max() <= 1
    assert torch.equal(finished["latents"], outputs["latents"])


GOOD = clip(2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"image": torch.zeros(24, 16, 3, dtype=torch.uint8)},
            "image: 24 x 16 pixels, the model takes 16 x 24",
        ),
        ({"image": torch.zeros(16, 24, 3)}, "an image must be a uint8 tensor"),
        ({"actions": torch.zeros(0, 25)}, r"actions must be floats \[frames, 25\] of 1 to 7 frames"),
        ({"actions": torch.zeros(8, 25)}, r"of 1 to 7 frames, not float32 \[8, 25\]"),
        ({"actions": torch.zeros(2, 24)}, r"not float32 \[2, 24\]"),
        ({"actions": torch.full((2, 25), torch.nan)}, r"actions must lie within -1 \.\. 1"),
        ({"actions": torch.full((2, 25), 1.5)}, r"actions must lie within -1 \.\. 1"),
        ({"steps": 0}, "steps must be an integer from 1 to 1000, not 0"),
        ({"steps": 2.5}, "steps must be an integer from 1 to 1000, not 2.5"),
        ({"seed": -1}, "seed must be an integer from 0"),
        ({"frames": 3}, "oasis:tiny takes image, actions, steps, seed"),
    ],
)
def test_refused_clips_do_no_harm(changes: dict[str, Any], says: str) -> None:
    face = model()
    with pytest.raises(RequestError, match=f"request 1: .*{says}"):
        face.run([GOOD, GOOD | changes])
    assert face.stages["rollout"].batch_sizes == []
    refused, found = face.run([GOOD | changes, GOOD], errors="return")
    assert isinstance(refused, RequestError)
    assert torch.equal(found["latents"], model().run([GOOD])[0]["latents"])


def test_graphs_replay_with_their_own_clips() -> None:
    plain, replayed = model(), replaying(model())
    for seed in range(3):
        asked = [clip(2, 2 * seed), clip(2, 2 * seed + 1)]
        for ours, theirs in zip(latents(replayed.run(asked)), latents(plain.run(asked)), strict=True):
            assert torch.equal(ours, theirs)
    assert replayed.stats()["rollout"]["graph_replays"] == 2
