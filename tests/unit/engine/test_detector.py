"""Images to labelled boxes: batching by size, thresholds, free places, refusals, graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels.engine.detector import Detections, Detector
from fastkernels.engine.encoder import Encoder
from fastkernels.errors import RequestError, UsageError
from fastkernels.nn.detections import MIN_SCORE, PLACES
from tests.unit.engine.test_encoder import images, replaying


def detector(**options: Any) -> Detector:
    return Detector("yolov10", config="tiny", device="cpu", **options)


def test_images_of_one_size_share_a_launch_and_equal_single_ones():
    sizes = [(64, 96), (32, 160), (64, 96), (64, 96)]
    together, alone = detector(), detector(max_batch=1)
    found, expected = together.detect(images(sizes)), alone.detect(images(sizes))
    assert sorted(together.stages["detect"].batch_sizes) == [1, 3]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.boxes_K4.shape == (PLACES, 4)
        torch.testing.assert_close(ours.scores_K, theirs.scores_K, rtol=0, atol=1e-4)
    assert not torch.allclose(found[0].scores_K, found[2].scores_K, atol=1e-3), "images must differ"


def test_scores_fall_and_free_places_are_empty():
    """A single row of cells, 32 x 64 pixels: 42 cells, fewer than there are places."""
    (found,) = detector().detect(images([(32, 64)]))
    taken = found.labels_K >= 0
    assert 0 < taken.sum() <= 42
    assert (found.scores_K[taken] > MIN_SCORE).all()
    assert (found.scores_K.diff() <= 0).all()
    assert found.scores_K[~taken].abs().sum() == found.boxes_K4[~taken].abs().sum() == 0
    assert (found.labels_K[~taken] == -1).all()
    assert found.labels_K.max() < 4


def test_what_scores_too_little_is_left_out():
    one = detector()
    plain = one.detect(images([(64, 96)]))[0]
    for branch in one.model.head.cls:
        branch[-1].bias -= 3
    fewer = one.detect(images([(64, 96)]))[0]
    assert (plain.labels_K >= 0).sum() > (fewer.labels_K >= 0).sum()
    assert (fewer.scores_K[fewer.labels_K >= 0] > MIN_SCORE).all()


def test_pixels_are_rows_columns_channels_from_0_to_1():
    image = torch.zeros(32, 64, 3, dtype=torch.uint8)
    image[3, 5, 1] = 255
    pixels: Any = detector().stages["detect"].batching
    (pixels_BYXC,) = pixels.prepare(*pixels.join([(image,)]))
    assert pixels_BYXC.shape == (1, 32, 64, 3)
    assert pixels_BYXC.nonzero().tolist() == [[0, 3, 5, 1]]
    assert pixels_BYXC.max() == 1


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (torch.zeros(64, 96, 3), "uint8"),
        (torch.zeros(64, 96, 1, dtype=torch.uint8), "1 channels"),
        (torch.zeros(64, 80, 3, dtype=torch.uint8), "64 x 80 pixels: sides must be multiples of 32"),
        (torch.zeros(0, 96, 3, dtype=torch.uint8), "request 1: .*0 x 96 pixels is empty"),
    ],
)
def test_refused_images_do_no_harm(image: Tensor, says: str):
    one = detector()
    with pytest.raises(RequestError, match=says):
        one.detect([*images([(64, 96)]), image])
    assert one.stages["detect"].batch_sizes == []
    (expected,) = one.detect(images([(64, 96)]))
    refused, found = one.detect([image, images([(64, 96)])[0].numpy()], errors="return")
    assert isinstance(refused, RequestError)
    assert isinstance(found, Detections)
    torch.testing.assert_close(found.scores_K, expected.scores_K, rtol=0, atol=1e-5)
    assert one.detect([]) == []


def test_a_face_refuses_other_kinds_of_answer():
    with pytest.raises(UsageError, match="yolov10:tiny answers with detections: Encoder serves"):
        Encoder("yolov10", size="tiny")
    with pytest.raises(UsageError, match="siglip2:tiny answers with features: Detector serves"):
        Detector("siglip2", size="tiny")


def test_graphs_replay_with_their_own_images():
    plain, replayed = detector(), replaying(detector())
    for seed in range(4):
        expected = plain.detect(images([(64, 96)] * 2, seed))
        for ours, theirs in zip(replayed.detect(images([(64, 96)] * 2, seed)), expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    assert replayed.stats()["detect"]["graph_replays"] == 3
