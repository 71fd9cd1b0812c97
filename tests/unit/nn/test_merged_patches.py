"""Preprocessing of images against the Hugging Face processor, and what is no image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastkernels.errors import RequestError, UsageError
from fastkernels.nn import merged_patches
from fastkernels.nn.merged_patches import MergedPatches, Patching, Pictures, bounds, fitted
from fastkernels.nn.program import Place

PATCHING = Patching(14, 2, 2)
LEAST, MOST = 56 * 56, 14 * 14 * 4 * 64
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
ONE_STEP = 1 / (255 * min(DEVIATION))  # of a byte


def processor() -> Any:
    pytest.importorskip("PIL.Image")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(min_pixels=LEAST, max_pixels=MOST)


def batching() -> MergedPatches:
    return MergedPatches(PATCHING, Place(torch.device("cpu"), torch.float32), MEAN, DEVIATION)


def pictures(**options: Any) -> Pictures:
    return Pictures(250, "encode", PATCHING, LEAST, MOST, **options)


def smooth(height: int, width: int) -> Tensor:
    """Colours that change slowly: rounding differences of resizers stay at one step."""
    y, x = np.mgrid[0 : 1 : complex(height), 0 : 1 : complex(width)]
    waves = [np.sin(7 * y + 2 * c) * np.cos(9 * x - c) for c in range(3)]
    return torch.from_numpy((127 + 120 * np.stack(waves, -1)).astype(np.uint8))


SIZES = [(56, 84), (1, 1), (30, 100), (5, 900), (200, 70), (33, 47), (700, 500), (2, 400), (61, 1000)]


@pytest.mark.parametrize("size", SIZES)
def test_patches_are_those_of_the_processor(size: tuple[int, int]):
    image = smooth(*size)
    made = processor()([pytest.importorskip("PIL.Image").fromarray(image.numpy())], return_tensors="pt")
    item = pictures().item(image)
    pixels_PV, shapes, starts, longest = batching().join([item.call.args])
    assert [1, *shapes[0].tolist()] == made["image_grid_thw"][0].tolist()
    assert starts.tolist() == [0, longest] == [0, 4 * item.num_tokens]
    theirs = made["pixel_values"].unflatten(1, (3, 2, 14, 14)).permute(0, 2, 3, 4, 1).flatten(1)
    off = (pixels_PV - theirs).abs()
    assert off.max() < 1.1 * ONE_STEP
    assert off.mean() < 0.1 * ONE_STEP
    if image.shape[:2] == (56, 84):  # not resized
        torch.testing.assert_close(pixels_PV, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(300, 333), (40, 100), (256, 256)])
def test_patches_of_sixteen_pixels_and_other_colours(size: tuple[int, int]):
    """As Qwen3-VL's processor makes them. Either resizer rounds to bytes along one side and then along the
    other: hardly a value is off twice."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    bounds, half, patching = (256 * 256, 4096 * 4096), [0.5] * 3, Patching(16, 2, 2)
    given = {"patch_size": 16, "min_pixels": bounds[0], "max_pixels": bounds[1]}
    theirs = Qwen2VLImageProcessorPil(**given, image_mean=half, image_std=half)
    image = smooth(*size)
    made = theirs([pytest.importorskip("PIL.Image").fromarray(image.numpy())], return_tensors="pt")
    item = Pictures(250, "encode", patching, *bounds).item(image)
    place = Place(torch.device("cpu"), torch.float32)
    pixels_PV, shapes, _, _ = MergedPatches(patching, place, half, half).join([item.call.args])
    assert [1, *shapes[0].tolist()] == made["image_grid_thw"][0].tolist()
    wanted = made["pixel_values"].unflatten(1, (3, 2, 16, 16)).permute(0, 2, 3, 4, 1).flatten(1)
    off = (pixels_PV - wanted).abs() * (255 * 0.5)  # in steps of a byte
    assert off.max() < 2.1
    assert (off > 1.1).float().mean() < 1e-4
    assert off.mean() < 0.1


def test_sides_by_the_reference():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    rng = np.random.default_rng(0)
    for _ in range(500):
        height = int(rng.integers(1, 3000))
        width = int(rng.integers(max(1, height // 200 + 1), min(3000, height * 200) + 1))
        assert fitted(height, width, 28, LEAST, MOST) == smart_resize(height, width, 28, LEAST, MOST)
    for sides in ((1, 201), (10_000, 49)):
        with pytest.raises(RequestError, match="200 times the other at most"):
            fitted(*sides, 28, LEAST, MOST)


def test_videos_repeat_their_last_frame():
    video = torch.stack([smooth(56, 84) // (n + 1) for n in range(3)])
    item = pictures(is_video=True).item(video)
    pixels_PV, shapes, starts, longest = batching().join([item.call.args])
    assert item.num_tokens == 2 * 2 * 3
    assert shapes.tolist() == [[4, 6], [4, 6]]
    assert starts.tolist() == [0, 24, 48]
    assert longest == 24
    (first, _, _, _), (second, _, _, _) = (
        batching().join([pictures(is_video=True).item(torch.stack(pair)).call.args])
        for pair in ((video[0], video[1]), (video[2], video[2]))
    )
    torch.testing.assert_close(pixels_PV, torch.cat((first, second)), rtol=0, atol=0)


def test_a_launch_takes_a_bounded_number_of_patches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merged_patches, "MOST_PATCHES", 60)
    calls = [pictures().item(smooth(56, 84)).call.args for _ in range(5)]  # of 24 patches
    assert batching().fitting(calls) == 2
    assert batching().fitting([pictures().item(smooth(140, 140)).call.args]) == 1
    rows = batching().divide(torch.arange(12), calls[:2])
    assert [one.tolist() for one in rows] == [list(range(6)), list(range(6, 12))]


def test_contents_tell_images_apart():
    digests = {pictures().item(image).digest for image in (smooth(56, 84), smooth(84, 56), smooth(57, 84))}
    assert len(digests) == 3
    assert pictures().item(smooth(56, 84)).digest == pictures().item(smooth(56, 84).clone()).digest
    other = smooth(56, 84)
    other[3, 4, 1] += 1
    assert pictures().item(other).digest not in digests


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (torch.zeros(0, 40, 3, dtype=torch.uint8), r"an image \[0, 40, 3\] is empty"),
        (torch.zeros(40, 40, 3), r"must be a uint8 tensor .* not float32 \[40, 40, 3\]"),
        (torch.zeros(3, 40, 40, dtype=torch.uint8), "40 channels, the model takes 3. Put them last"),
        (torch.zeros(40, 40, 2, dtype=torch.uint8), "2 channels, the model takes 3. Convert it to RGB"),
        (torch.zeros(2, 40, 40, 3, dtype=torch.uint8), r"\[height, width, 3\], not uint8 \[2, 40, 40, 3\]"),
        (torch.zeros(40, 10_000, 3, dtype=torch.uint8), "200 times"),
        ("picture.png", "not str"),
    ],
)
def test_what_is_no_image(image: Any, says: str):
    with pytest.raises(RequestError, match=says):
        pictures().item(image)


def test_what_is_no_video():
    for video, says in (
        (torch.zeros(40, 40, 3, dtype=torch.uint8), r"\[frames, height, width, 3\]"),
        (torch.zeros(769, 1, 1, 3, dtype=torch.uint8), "769 frames: the model takes up to 768"),
        (torch.zeros(0, 40, 40, 3, dtype=torch.uint8), "is empty"),
    ):
        with pytest.raises(RequestError, match=says):
            pictures(is_video=True).item(video)


def test_bounds_of_a_processor_file():
    assert bounds({}, (1, 2)) == (1, 2)
    assert bounds({"min_pixels": 5, "max_pixels": 9}, (1, 2)) == (5, 9)
    assert bounds({"size": {"shortest_edge": 5, "longest_edge": 9}}, (1, 2)) == (5, 9)
    with pytest.raises(UsageError, match=r"preprocessor_config\.json: min_pixels"):
        bounds({"min_pixels": "5"}, (1, 2))


def test_the_largest_launch():
    pixels_PV, grids, starts, longest = batching().largest()
    assert pixels_PV.shape == (merged_patches.MOST_PATCHES, PATCHING.values)
    assert starts.diff().tolist() == grids.prod(1).tolist() == [longest] * len(grids)
    assert starts[-1] == len(pixels_PV)
