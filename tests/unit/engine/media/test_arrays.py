"""The forms in which callers have images: what is taken, and what is refused with a reason."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from fastkernels.engine.media.arrays import value_of
from fastkernels.errors import RequestError
from tests.helpers import nested
from tests.unit.engine.test_encoder import encoder, images

Image: Any = pytest.importorskip("PIL.Image")


def test_images_come_as_tensors_arrays_and_pil_images(recwarn: pytest.WarningsRecorder):
    (image,) = images([(48, 64)])
    array = image.numpy()
    read_only = np.frombuffer(array.tobytes(), np.uint8).reshape(array.shape)
    forms = [image, array, array[:, ::-1].copy()[:, ::-1], read_only, Image.fromarray(array)]
    features = encoder().encode(forms)
    for feature in features[1:]:
        torch.testing.assert_close(feature, features[0], rtol=0, atol=1e-5)
    assert not recwarn.list


def unreadable() -> Any:
    """A file that ends in the middle, which shows when its pixels are read."""
    file = io.BytesIO()
    Image.effect_noise((64, 48), 90).convert("RGB").save(file, "png")
    return Image.open(io.BytesIO(file.getvalue()[:2000]))


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (Image.new("L", (64, 48)), r"mode L: the model takes RGB. Use convert\('RGB'\)"),
        (Image.new("HSV", (64, 48)), "mode HSV"),
        (unreadable(), "cannot be read: .*truncated"),
        (np.zeros((48, 64, 3)), r"not float64 \[48, 64, 3\]"),
        (torch.zeros(48, 64, 3, dtype=torch.uint8).to_sparse(), "an image is a sparse_coo tensor"),
        (torch.zeros(48, 64, 3, dtype=torch.uint8, device="meta"), "an image is a meta tensor"),
        (np.zeros((48, 64), np.uint8), r"not uint8 \[48, 64\]. Repeat grey"),
        (np.zeros((48, 64, 3)), r"\[48, 64, 3\]. Scale its values to 0 .. 255"),
        (torch.zeros(2, 48, 64, 3, dtype=torch.uint8), r"\[2, 48, 64, 3\]. Give the images of a batch one"),
        (torch.zeros(3, 48, 64, dtype=torch.uint8), "64 channels, the model takes 3. Put them last"),
        (torch.zeros(48, 64, 4, dtype=torch.uint8), "4 channels, the model takes 3. Convert it"),
        (nested(), "an image is a nested tensor"),
    ],
)
def test_refused_forms_of_images(image: object, says: str):
    with pytest.raises(RequestError, match=says):
        encoder().encode([image])


def test_what_is_no_image_is_left_to_the_batching():
    for given in (None, b"no image", "cat.png"):
        assert value_of(given) is given
