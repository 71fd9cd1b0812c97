"""The denoising loop, the decoder behind it, and the graphs of both on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


def request(seed: int) -> ImageRequest:
    generator = torch.Generator().manual_seed(seed)
    text_SJ, pooled_P = (torch.randn(*shape, generator=generator) for shape in ((5, 32), (24,)))
    return ImageRequest(text_SJ, pooled_P, height=48, width=80, steps=3, seed=seed, output="latent")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_loops_equal_eager_ones(dtype):
    graphed = ImagePipeline("flux", config="tiny", device="cuda", dtype=dtype)
    eager = ImagePipeline("flux", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    # A stale input or another image's prompt is wrong by about 1.
    tolerance = 1e-3 if dtype == "float32" else 0.2
    for seeds in ((0, 1), (2, 3), (4, 5)):
        requests = [request(seed) for seed in seeds]
        for one, wanted in zip(graphed.generate(requests), eager.generate(requests), strict=True):
            torch.testing.assert_close(one, wanted, rtol=0, atol=tolerance)
    stats = graphed.stats()["denoise"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 8)
    assert stats["eager_calls"] == {"first call of its shapes": 1}
    assert eager.stats()["denoise"]["eager_calls"] == {"enforce_eager": 9}


def test_cuda_agrees_with_the_cpu():
    here, there = (ImagePipeline("flux", config="tiny", device=d, dtype="float32") for d in ("cpu", "cuda"))
    for one, wanted in zip(there.generate([request(7)]), here.generate([request(7)]), strict=True):
        torch.testing.assert_close(one.cpu(), wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_text_encoders_equal_eager_ones(dtype):
    graphed = ImagePipeline("flux", config="tiny", device="cuda", dtype=dtype)
    eager = ImagePipeline("flux", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    # The features of another prompt are wrong by about 1.
    tolerance = 1e-3 if dtype == "float32" else 0.2
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        ids = [torch.randint(100, (length,), generator=generator) for length in (19, 77)]
        requests = [ImageRequest(*ids, height=48, width=80, steps=1, seed=seed, output="latent")]
        for one, wanted in zip(graphed.generate(requests), eager.generate(requests), strict=True):
            torch.testing.assert_close(one, wanted, rtol=0, atol=tolerance)
    stats = graphed.stats()
    for stage in ("text_encoder_2", "text_encoder"):
        assert (stats[stage]["graphs"], stats[stage]["graph_replays"]) == (1, 2)
        assert stats[stage]["eager_calls"] == {"first call of its shapes": 1}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_decoders_equal_eager_ones(dtype):
    """Latents are the same for both, so only the decoder differs."""
    graphed = ImagePipeline("flux", config="tiny", device="cuda", dtype=dtype)
    eager = ImagePipeline("flux", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    # Another image's pixels are wrong by about 1.
    tolerance = 1e-3 if dtype == "float32" else 0.1
    for seed in range(3):
        (latents_LC,) = eager.generate([request(seed)])
        image, wanted = (one.decode(latents_LC, 48, 80) for one in (graphed, eager))
        assert (image.shape, image.dtype) == ((3, 48, 80), torch.float32)
        torch.testing.assert_close(image, wanted, rtol=0, atol=tolerance)
    stats = graphed.stats()["to_pixels"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 2)
    assert stats["eager_calls"] == {"first call of its shapes": 1}


def test_images_agree_with_the_cpu():
    here, there = (ImagePipeline("flux", config="tiny", device=d, dtype="float32") for d in ("cpu", "cuda"))
    requests = [replace(request(seed), output="image") for seed in (7, 8)]
    for one, wanted in zip(there.generate(requests), here.generate(requests), strict=True):
        torch.testing.assert_close(one.cpu(), wanted, rtol=0, atol=2e-3)
