"""Requests of image classifiers: what is refused by name, while others are served."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model
from fastkernels.errors import RequestError
from tests.unit.engine.test_encoder import images

ARCHITECTURES = ("mobilenetv4", "efficientnetv2")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.param, config="tiny", device="cpu", dtype="float32")


def test_images_of_several_sizes_are_answered_as_alone(model: Model):
    batch = [{"image": image} for image in images([(64, 96), (32, 48), (64, 96)])]
    together = model.run(batch)
    assert not torch.equal(together[0]["logits"], together[2]["logits"])
    for request, answer in zip(batch, together):
        assert answer["logits"].shape == (10,)
        (alone,) = model.run([request])
        torch.testing.assert_close(answer["logits"], alone["logits"], rtol=0, atol=1e-5)


def test_what_is_no_image_is_refused_and_others_are_served(model: Model):
    (good,) = images([(64, 96)])
    bad = {
        "sides must be multiples": images([(64, 90)])[0],
        "is empty": torch.zeros(0, 96, 3, dtype=torch.uint8),
        "the model takes 3": torch.zeros(64, 96, 1, dtype=torch.uint8),
        "must be a uint8 tensor": torch.zeros(64, 96, 3),
    }
    found = model.run([{"image": good}, *({"image": image} for image in bad.values())], errors="return")
    for says, answer in zip(bad, found[1:]):
        assert isinstance(answer, RequestError)
        assert says in str(answer)
    torch.testing.assert_close(found[0]["logits"], model.run([{"image": good}])[0]["logits"])


def test_no_request_is_no_answer(model: Model):
    assert model.run([]) == []
