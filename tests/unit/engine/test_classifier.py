"""Image classifiers: images to logits, sizes that are served, refusals that leave others alone."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import Tensor

from fastkernels import Model
from fastkernels.errors import RequestError
from tests.unit.engine.test_encoder import images

# The smallest sides, sizes whose maps leave a rest at every step, and another aspect ratio.
SIZES = {
    "convnextv2": [(16, 16), (33, 47), (64, 40), (33, 47)],
    "swinv2": [(4, 4), (52, 20), (32, 64), (52, 20)],
    "mobilenetv4": [(32, 32), (64, 96), (32, 128), (64, 96)],
    "efficientnetv2": [(32, 32), (64, 96), (32, 128), (64, 96)],
}
CLASSES = 10
each_model = pytest.mark.parametrize("name", SIZES)


@lru_cache
def classifier(name: str) -> Model:
    return Model(name, config="tiny", device="cpu")


def asked(sizes: list[tuple[int, int]]) -> list[dict[str, Tensor]]:
    return [{"image": image} for image in images(sizes)]


@each_model
def test_images_of_one_size_share_a_launch_and_equal_single_ones(name: str):
    requests = asked(SIZES[name])
    together, alone = classifier(name), Model(name, config="tiny", device="cpu", max_batch=1)
    together.stages["forward"].batch_sizes.clear()
    found, expected = (model.run(requests) for model in (together, alone))
    assert sorted(together.stages["forward"].batch_sizes) == [1, 1, 2]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["logits"].shape == (CLASSES,)
        torch.testing.assert_close(ours["logits"], theirs["logits"], rtol=0, atol=1e-5)
    assert (found[1]["logits"] - found[3]["logits"]).abs().max() > 1e-2, "images must differ"


@each_model
def test_no_request_is_no_launch(name: str):
    assert classifier(name).run([]) == []


@pytest.mark.parametrize(
    ("name", "image", "says"),
    [
        ("convnextv2", torch.zeros(48, 15, 3), "uint8"),
        ("convnextv2", torch.zeros(48, 15, 3).byte(), "48 x 15 pixels: sides must be at least 16"),
        ("convnextv2", torch.zeros(48, 48, 1).byte(), "1 channels, the model takes 3"),
        ("convnextv2", torch.zeros(0, 48, 3).byte(), "0 x 48 pixels is empty"),
        ("swinv2", torch.zeros(32, 30, 3).byte(), "32 x 30 pixels: sides must be multiples of 4"),
        ("mobilenetv4", torch.zeros(64, 90, 3).byte(), "64 x 90 pixels: sides must be multiples of 16"),
    ],
)
def test_a_refused_image_does_no_harm(name: str, image: Tensor, says: str):
    model, (good,) = classifier(name), asked(SIZES[name][:1])
    with pytest.raises(RequestError, match=f"request 1: .*{says}"):
        model.run([good, {"image": image}])
    (expected,) = model.run([good])
    refused, found = model.run([{"image": image}, good], errors="return")
    assert isinstance(refused, RequestError)
    assert torch.equal(found["logits"], expected["logits"])
