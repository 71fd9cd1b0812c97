"""Stable Diffusion XL as callers ask it: company, guidance, graphs with a replay that computes eagerly,
refusals."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels import Model
from fastkernels.errors import RequestError
from tests.unit.engine.test_encoder import replaying


def model(**options: Any) -> Model:
    return Model("sdxl", config="tiny", device="cpu", **options)


@lru_cache
def shared() -> Model:
    return model()


def asked(number: int, **change: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(number)
    text, pooled = (torch.randint(100, (9,), generator=generator) for _ in range(2))
    return {"text": text, "pooled": pooled, "height": 64, "width": 32, "steps": 3, "seed": number} | change


def latents(model: Model, requests: list[dict[str, Any]]) -> list[Tensor]:
    return [answer["latents"] for answer in model.run(requests)]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_images_of_one_size_share_launches_and_equal_single_ones() -> None:
    """With other prompts, seeds and guidance; not those without guidance, whose step is another launch."""
    requests = [asked(0), asked(1, guidance=3.0), asked(2, guidance=1.0), asked(3, height=32), asked(4)]
    together = model()
    found = latents(together, requests)
    assert sorted(together.stages["denoise"].batch_sizes) == [1, 1, 3]
    assert [tuple(one.shape) for one in found] == [(8, 4, 4)] * 3 + [(4, 4, 4), (8, 4, 4)]
    for one, request in zip(found, requests):
        close(one, latents(shared(), [request])[0])
    assert (found[0] - found[4]).abs().max() > 0.5, "images must differ"


def test_every_input_counts() -> None:
    first = asked(0)
    (base,) = latents(shared(), [first])
    for change in (
        {"seed": 9},
        {"text": first["text"].flip(0)},
        {"pooled": first["pooled"].flip(0)},
        {"guidance": 9.0},
        {"guidance": 0.5},
        {"steps": 4},
    ):
        (other,) = latents(shared(), [first | change])
        assert (other - base).abs().max() > 0.01, change
    close(*latents(shared(), [first | {"guidance": 0.5}, first | {"guidance": 1.0}]))


def test_graphs_replay_every_step_of_later_loops_with_their_own_inputs() -> None:
    plain, replayed = shared(), replaying(model())
    for numbers in ((0, 1), (2, 3), (4, 5)):
        requests = [asked(number, guidance=2.0 + number) for number in numbers]
        for one, wanted in zip(latents(replayed, requests), latents(plain, requests), strict=True):
            close(one, wanted)
    stats = replayed.stats()["denoise"]
    assert (stats["graphs"], stats["calls"], stats["graph_replays"]) == (1, 9, 8)


def test_images_are_finished() -> None:
    requests = [asked(0), asked(1)]
    for one in shared().finish(shared().run(requests), requests):
        image = one["image"]
        assert (image.shape, image.dtype) == ((64, 32, 3), torch.float32)
        assert 0 <= image.min() < image.max() <= 1


def test_a_decoder_that_would_overflow_is_refused() -> None:
    half = model(dtype="float16")
    with pytest.raises(RequestError, match=r"overflows in float16 .*: ask for latents, or load"):
        half.finish([{"latents": torch.zeros(4, 4, 4)}], [asked(0)])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"height": 80}, "height=80: must be a multiple of 32 pixels, up to 4096"),
        ({"width": 0}, "width=0: must be a multiple"),
        ({"steps": 0}, "steps=0: must be an integer from 1 to 1000"),
        ({"guidance": float("nan")}, "guidance=nan: must be a number from 0 to 65"),
        ({"seed": -1}, "seed=-1: must be an integer"),
        ({"text": [1, 2]}, "text must be token ids or features, not list"),
        ({"pooled": torch.zeros(8, dtype=torch.int64)}, r"ids \[9\] and \[8\]: expected one prompt twice"),
        ({"pooled": torch.zeros(32)}, "must both be token ids, or both features"),
        ({"text": torch.full((9,), 100)}, "id 100 for the first CLIP: its vocabulary has 100"),
        ({"text": torch.zeros(9, 55), "pooled": torch.zeros(32)}, r"text \[9, 55\]: expected \[tokens, 56\]"),
        ({"text": torch.zeros(9, 56), "pooled": torch.zeros(31)}, r"pooled \[31\]: expected \[32\]"),
        ({"text": torch.zeros(9, 56), "pooled": torch.full((32,), torch.nan)}, "pooled has values"),
    ],
)
def test_refused_requests_do_no_harm(change: dict[str, Any], says: str) -> None:
    (expected,) = latents(shared(), [asked(0)])
    first, refused = shared().run([asked(0), asked(1, **change)], errors="return")
    with pytest.raises(RequestError, match=says):
        raise refused
    close(first["latents"], expected)
