"""Vision transformers as callers ask them: batching, normalised pixels, refusals, graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels import Model
from fastkernels.engine.encoder import Encoder
from fastkernels.errors import RequestError
from tests.unit.engine.test_encoder import images, replaying


def dinov3(**options: Any) -> Model:
    return Model("dinov3", config="tiny", device="cpu", **options)


def asked(sizes: list[tuple[int, int]], seed: int = 0) -> list[dict[str, Tensor]]:
    return [{"image": image} for image in images(sizes, seed)]


def test_images_of_one_size_share_a_launch_and_equal_single_ones() -> None:
    sizes = [(64, 96), (32, 160), (64, 96), (64, 96)]
    together, alone = dinov3(), dinov3(max_batch=1)
    found, expected = together.run(asked(sizes)), alone.run(asked(sizes))
    assert sorted(together.stages["forward"].batch_sizes) == [1, 3]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == {"features", "class_token"}
        for name in ours:
            assert ours[name].shape == (64,)
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)
    assert not torch.allclose(found[0]["features"], found[2]["features"], atol=1e-2), "images must differ"


def test_an_encoder_gives_the_mean_of_the_patches() -> None:
    batch = images([(64, 64), (64, 96)])
    features = Encoder("dinov3", config="tiny", device="cpu").encode(batch)
    expected = [answer["features"] for answer in dinov3().run([{"image": image} for image in batch])]
    torch.testing.assert_close(features, torch.stack(expected))


def test_pixels_are_normalised_as_imagenet() -> None:
    image = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(16, 32, 3)
    (pixels_BYXC,) = dinov3().stages["forward"].batching.join([(image,)])
    expected = [(0 - 0.485) / 0.229, (0.2 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    torch.testing.assert_close(pixels_BYXC, torch.tensor(expected).expand(1, 16, 32, 3))


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (torch.zeros(64, 96, 3), "uint8"),
        (torch.zeros(64, 96, 1, dtype=torch.uint8), "1 channels, the model takes 3"),
        (torch.zeros(64, 72, 3, dtype=torch.uint8), "64 x 72 pixels: sides must be multiples of 16"),
        (torch.zeros(64, 0, 3, dtype=torch.uint8), "64 x 0 pixels is empty"),
        (torch.zeros(2, 64, 64, 3, dtype=torch.uint8), "Give the images of a batch one by one"),
    ],
)
def test_refused_images_do_no_harm(image: Tensor, says: str) -> None:
    one, good = dinov3(), asked([(64, 96)])
    with pytest.raises(RequestError, match=f"request 1: .*{says}"):
        one.run([*good, {"image": image}])
    assert one.stages["forward"].batch_sizes == []
    (expected,) = one.run(good)
    refused, found = one.run([{"image": image}, *good], errors="return")
    assert isinstance(refused, RequestError)
    assert torch.equal(found["features"], expected["features"])
    assert one.run([]) == []


def test_graphs_replay_with_their_own_images() -> None:
    plain, replayed = dinov3(), replaying(dinov3())
    for seed in range(4):
        expected = plain.run(asked([(64, 96)] * 2, seed))
        for ours, theirs in zip(replayed.run(asked([(64, 96)] * 2, seed)), expected, strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert replayed.stats()["forward"]["graph_replays"] == 3
