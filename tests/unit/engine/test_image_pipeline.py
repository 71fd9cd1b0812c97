"""Prompts to latents through one denoising stage, and to images through a second one: company, loops, graphs
with a replay that computes eagerly, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastkernels import registry
from fastkernels.engine.encoder import Encoder
from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest
from fastkernels.errors import RequestError, UsageError
from fastkernels.nn import latents
from tests.unit.engine.test_encoder import replaying


def pipeline(**options: Any) -> ImagePipeline:
    return ImagePipeline("flux", config="tiny", device="cpu", **options)


def request(seed: int, height: int = 64, width: int = 64, steps: int = 3, tokens: int = 5) -> ImageRequest:
    generator = torch.Generator().manual_seed(seed)
    text_SJ, pooled_P = (torch.randn(*shape, generator=generator) for shape in ((tokens, 32), (24,)))
    return ImageRequest(text_SJ, pooled_P, height, width, steps, seed=seed, output="latent")


def image_request(seed: int, *size: int) -> ImageRequest:
    return replace(request(seed, *size), output=None)


def without_decoder() -> ImagePipeline:
    """As the folder of a transformer alone gives it."""
    transformer = registry.architecture("flux").configs["tiny"].config["transformer"]
    return ImagePipeline({"_class_name": "FluxTransformer2DModel", **transformer}, device="cpu")


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_images_of_one_size_share_launches_and_equal_single_ones():
    requests = [
        request(0),
        request(1, 48, 80),
        request(2),
        request(3, steps=2),
        request(4, tokens=9),
        request(5),
    ]
    together, alone = pipeline(), pipeline(max_batch=1)
    found, single = together.generate(requests), alone.generate(requests)
    assert together.stages["denoise"].batch_sizes == [3, 1, 1, 1]
    assert alone.stages["denoise"].batch_sizes == [1] * 6
    assert [len(one) for one in found] == [16, 15, 16, 16, 16, 16]
    for one, other in zip(found, single):
        close(one, other)
    assert (found[0] - found[2]).abs().max() > 0.5, "images must differ"


def test_noise_prompt_guidance_and_steps_all_count():
    first = request(0)
    (base,) = pipeline().generate([first])
    for change in (
        {"seed": 9},
        {"text": -first.text},
        {"pooled": -first.pooled},
        {"guidance": 9.0},
        {"steps": 4},
    ):
        (other,) = pipeline().generate([replace(first, **change)])
        assert (other - base).abs().max() > 0.01, change


def test_graphs_replay_every_step_of_later_loops_with_their_own_inputs():
    plain, replayed = pipeline(), replaying(pipeline())
    for seeds in ((0, 1), (2, 3), (4, 5)):
        requests = [request(seed) for seed in seeds]
        for one, wanted in zip(replayed.generate(requests), plain.generate(requests), strict=True):
            close(one, wanted)
    stats = replayed.stats()["denoise"]
    assert (stats["graphs"], stats["calls"], stats["graph_replays"]) == (1, 9, 8)
    assert stats["eager_calls"] == {"first call of its shapes": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"height": 60}, "height=60: must be a multiple of 16 pixels"),
        ({"width": 0}, "width=0: must be"),
        ({"height": 32.0}, "height=32.0"),
        ({"height": "32"}, "height='32'"),
        ({"width": 16 * 10**6}, "width=16000000: .* up to 4096"),
        ({"steps": 0}, "steps=0: must be an integer from 1 to 1000"),
        ({"steps": 1.5}, "steps=1.5"),
        ({"steps": True}, "steps=True"),
        ({"steps": 10**6}, "steps=1000000"),
        ({"guidance": float("nan")}, "guidance=nan: must be a number from 0 to 65"),
        ({"guidance": float("inf")}, "guidance=inf"),
        ({"guidance": -1.0}, "guidance=-1.0"),
        ({"guidance": "3"}, "guidance='3'"),
        ({"seed": 1.5}, "seed=1.5: must be a 64-bit integer"),
        ({"seed": 2**70}, "seed=1180591620717411303424"),
        ({"seed": None}, "seed=None"),
        ({"text": torch.full((5, 32), float("nan"))}, "text holds nan: features are finite"),
        ({"text": torch.full((5, 32), 1e30)}, r"text holds 1e\+30"),
        ({"pooled": torch.full((24,), float("-inf"))}, "pooled holds inf"),
        ({"text": torch.zeros(5, dtype=torch.bool)}, "text is bool"),
        ({"text": [1, 2]}, "a prompt is a str, or two tensors"),
        ({"text": torch.zeros(5, 31)}, r"expected \[tokens, 32\]"),
        ({"text": torch.zeros(0, 32)}, r"expected \[tokens, 32\]"),
        ({"pooled": torch.zeros(23)}, r"expected \[24\]"),
        ({"output": "pil"}, "output='pil': must be 'image' or 'latent'"),
        ({"output": np.array(["image", "latent"])}, "output=array.*must be 'image' or 'latent'"),
    ],
)
def test_refused_requests_do_no_harm(change: dict[str, Any], says: str):
    one = pipeline()
    with pytest.raises(RequestError, match=says):
        one.generate([request(0), replace(request(1), **change)])
    assert one.stages["denoise"].batch_sizes == [], "nothing is computed"
    (expected,) = one.generate([request(0)])
    first, refused, last = one.generate(
        [request(0), replace(request(1), **change), request(0)], errors="return"
    )
    assert isinstance(refused, RequestError)
    close(first, expected)
    close(last, expected)
    assert one.generate([]) == []


def test_what_is_no_request_is_refused():
    with pytest.raises(RequestError, match="request 0: a request must be an ImageRequest, not 'a cat'"):
        pipeline().generate(["a cat"])  # type: ignore[list-item]


def test_numbers_of_numpy_are_numbers():
    numbers = {"height": np.int64(64), "steps": np.int32(3), "seed": np.int64(0), "guidance": np.float32(3.5)}
    plain, other = pipeline().generate([request(0), replace(request(0), **numbers)])
    close(plain, other)


@pytest.mark.parametrize(
    ("x_LC", "sides", "says"),
    [
        (torch.zeros(3, 3), (32, 32), r"latents \[3, 3\]: an image of 32 x 32 pixels has \[4, 16\]"),
        (torch.zeros(4, 16), (33, 32), "height=33: must be a multiple of 16"),
        (torch.zeros(4, 16), (32, 32.0), "width=32.0"),
        (torch.zeros(4, 16), (32, 64), r"has \[8, 16\]"),
        (torch.zeros(4, 16, dtype=torch.int64), (32, 32), "must be a tensor of floats"),
        (None, (32, 32), r"must be a tensor of floats \[4, 16\], not None"),
        (torch.zeros(4, 16, device="meta"), (32, 32), "latents is a meta tensor"),
    ],
)
def test_latents_that_are_none_of_the_image_are_refused(x_LC: Any, sides: tuple[Any, Any], says: str):
    one = pipeline()
    with pytest.raises(RequestError, match=says):
        one.decode(x_LC, *sides)
    assert one.decode(torch.zeros(4, 16, dtype=torch.float64), 32, 32).shape == (3, 32, 32)


def test_each_face_serves_its_kind_of_answer():
    with pytest.raises(UsageError, match="siglip2:tiny answers with features: ImagePipeline serves"):
        ImagePipeline("siglip2", size="tiny")
    with pytest.raises(UsageError, match="flux:tiny answers with image: Encoder serves"):
        Encoder("flux", size="tiny")


# ---------------------------------------------------------------- from latents to images


def test_images_are_their_latents_decoded():
    one = pipeline()
    found = one.generate([image_request(0), image_request(1, 48, 80)])
    assert [image.shape for image in found] == [(3, 64, 64), (3, 48, 80)]
    for image in found:
        assert image.dtype == torch.float32
        assert image.min() >= 0
        assert image.max() <= 1
        assert image.std() > 0.1, "an image without structure"
    tokens = one.generate([request(0), request(1, 48, 80)])
    for image, x_LC, (height, width) in zip(found, tokens, ((64, 64), (48, 80)), strict=True):
        close(image, one.decode(x_LC, height, width))
        map_BYXC = latents.unpack(x_LC[None], height // 16, width // 16)
        close(image, one.model.decode(map_BYXC)[0])


def test_images_of_one_size_share_launches_of_both_stages():
    requests = [image_request(0), request(1), image_request(2), image_request(3, 48, 80)]
    together, alone = pipeline(), pipeline(max_batch=1)
    found, single = together.generate(requests), alone.generate(requests)
    sizes = {name: stage.batch_sizes for name, stage in together.stages.items()}
    assert sizes == {"denoise": [3, 1], "text_encoder_2": [], "text_encoder": [], "to_pixels": [2, 1]}
    assert found[1].shape == (16, 16), "latents were asked for"
    for one, other in zip(found, single, strict=True):
        close(one, other)
    assert (found[0] - found[2]).abs().max() > 0.5, "images must differ"


def test_a_launch_of_the_decoder_is_small():
    one = pipeline()
    one.generate([image_request(seed, 16, 16) for seed in range(7)])
    assert one.stages["to_pixels"].batch_sizes == [4, 3]
    assert one.stages["denoise"].batch_sizes == [7]


def test_the_decoder_has_graphs_of_its_own():
    plain, replayed = pipeline(), replaying(pipeline())
    for seeds in ((0, 1), (2, 3), (4, 5)):
        requests = [image_request(seed) for seed in seeds]
        for one, wanted in zip(replayed.generate(requests), plain.generate(requests), strict=True):
            close(one, wanted)
    stats = replayed.stats()["to_pixels"]
    assert (stats["graphs"], stats["calls"], stats["graph_replays"]) == (1, 3, 2)
    with replayed.eager():
        replayed.generate(requests)
    assert replayed.stats()["to_pixels"]["eager_calls"] == {"first call of its shapes": 1, "eager()": 1}


def test_a_transformer_alone_answers_with_latents():
    one = without_decoder()
    (found,) = one.generate([image_request(0)])
    assert found.shape == (16, 16)
    assert list(one.stages) == ["denoise"]
    with pytest.raises(RequestError, match=r"no vae beside its denoiser.*load the whole folder"):
        one.generate([replace(request(0), output="image")])
    with pytest.raises(RequestError, match="no vae beside its denoiser"):
        one.decode(found, 64, 64)
