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
    pixels: Any = dinov3().stages["forward"].batching
    (pixels_BYXC,) = pixels.prepare(*pixels.join([(image,)]))
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


def vjepa2(**options: Any) -> Model:
    return Model("vjepa2", config="tiny", device="cpu", **options)


def clips(frames: list[int], seed: int = 0) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {"video": torch.randint(0, 256, (n, 32, 32, 3), generator=generator, dtype=torch.uint8)}
        for n in frames
    ]


TARGETS = torch.tensor([1, 9, 15])


def test_videos_share_a_launch_with_places_of_their_own() -> None:
    together, alone = vjepa2(), vjepa2(max_batch=1)
    places = [TARGETS, TARGETS + 40, TARGETS + 3]
    asked = [{**clip, "target_mask": mask} for clip, mask in zip(clips([8, 8, 4]), places)]
    found, expected = together.run(asked), alone.run(asked)
    assert sorted(together.stages["forward"].batch_sizes) == [1, 2]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == {"target_hidden_state", "predictor_hidden_state"}
        for name in ours:
            assert ours[name].shape == (3, 64)
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)
    assert not torch.allclose(
        found[0]["predictor_hidden_state"], found[1]["predictor_hidden_state"], atol=0.1
    )


def test_without_a_context_it_is_all_that_are_no_targets() -> None:
    (clip,) = clips([8])
    rest = torch.tensor([place for place in range(64) if place not in TARGETS.tolist()])
    by_default, said = vjepa2().run(
        [clip | {"target_mask": TARGETS, "context_mask": c} for c in (None, rest)]
    )
    assert torch.equal(by_default["predictor_hidden_state"], said["predictor_hidden_state"])
    every, skipped = vjepa2().run([clip, clip | {"skip_predictor": True}])
    assert every["target_hidden_state"].shape == every["predictor_hidden_state"].shape == (64, 64)
    torch.testing.assert_close(every["target_hidden_state"][TARGETS], by_default["target_hidden_state"])
    torch.testing.assert_close(skipped["target_hidden_state"], every["target_hidden_state"])
    assert skipped["predictor_hidden_state"].shape == (0, 64)


def test_normalised_frames_and_a_single_one() -> None:
    (clip,) = clips([8])
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    floats = {"video": (clip["video"] / 255 - mean) / std}
    ours, theirs = vjepa2().run([clip, floats])
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-4)
    once, twice = vjepa2().run([{"video": clip["video"][:1]}, {"video": clip["video"][[0, 0]]}])
    assert torch.equal(once["target_hidden_state"], twice["target_hidden_state"])


VIDEO = torch.zeros(8, 32, 32, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"video": VIDEO.int()}, "uint8 or floats that are normalised, not int32"),
        ({"video": VIDEO[0]}, r"uint8 \[32, 32, 3\]"),
        ({"video": VIDEO.permute(0, 3, 1, 2)}, "the model takes height 32, width 32, 3 channels"),
        ({"video": VIDEO[:, :24]}, r"frames \[24, 32, 3\]"),
        ({"video": [VIDEO], "target_mask": TARGETS}, "not list"),
        ({"video": VIDEO[:0]}, "a video of 0 frames"),
        ({"video": VIDEO[:3]}, "3 frames: the model takes up to 2, or a multiple of 2 up to 8"),
        ({"video": VIDEO.repeat(2, 1, 1, 1)}, "a video of 16 frames"),
        ({"video": VIDEO, "target_mask": torch.tensor([64])}, r"place 64: the tokens are 0 \.\. 63"),
        ({"video": VIDEO[:4], "target_mask": torch.tensor([40])}, r"the tokens are 0 \.\. 31"),
        ({"video": VIDEO, "target_mask": torch.tensor([3, -1])}, "target_mask has place -1"),
        ({"video": VIDEO, "target_mask": torch.tensor([0.5])}, "target_mask must be int64"),
        ({"video": VIDEO, "target_mask": torch.arange(64)}, r"context_mask must be .* int64 \[0\]"),
        ({"video": VIDEO, "context_mask": TARGETS}, "context_mask without target_mask"),
        ({"video": VIDEO, "classify": True, "target_mask": TARGETS}, "classify: it takes the whole video"),
        ({"video": VIDEO, "masks": TARGETS}, "vjepa2:tiny takes video, context_mask"),
    ],
)
def test_refused_videos_do_no_harm(request_: dict[str, Any], says: str) -> None:
    one, good = vjepa2(), clips([8])
    with pytest.raises(RequestError, match=f"request 1: .*{says}"):
        one.run([*good, request_])
    assert one.stages["forward"].batch_sizes == []
    (expected,) = one.run(good)
    refused, found = one.run([request_, *good], errors="return")
    assert isinstance(refused, RequestError)
    assert torch.equal(found["predictor_hidden_state"], expected["predictor_hidden_state"])


def test_only_a_model_with_a_classifier_classifies() -> None:
    (clip,) = clips([8])
    (answer,) = vjepa2().run([clip | {"classify": True}])
    assert answer["logits"].shape == (7,)
    plain = vjepa2()
    plain.model.pooler = None
    with pytest.raises(RequestError, match="classify: the model is no VJEPA2ForVideoClassification"):
        plain.run([clip | {"classify": True}])


def test_graphs_replay_with_their_own_videos_and_places() -> None:
    plain, replayed = vjepa2(), replaying(vjepa2())
    for seed in range(4):
        asked = [clip | {"target_mask": TARGETS + seed + i} for i, clip in enumerate(clips([8, 8], seed))]
        for ours, theirs in zip(replayed.run(asked), plain.run(asked), strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert replayed.stats()["forward"]["graph_replays"] == 3
