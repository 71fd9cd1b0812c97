"""The denoising loop and its graphs on a GPU."""

from __future__ import annotations

import pytest
import torch

from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def request(seed: int) -> ImageRequest:
    generator = torch.Generator().manual_seed(seed)
    text_SJ, pooled_P = (torch.randn(*shape, generator=generator) for shape in ((5, 32), (24,)))
    return ImageRequest(text_SJ, pooled_P, height=48, width=80, steps=3, seed=seed)


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
    stats = graphed.stats()
    assert (stats["graphs"], stats["graph_replays"]) == (1, 8)
    assert stats["eager_calls"] == {"first call of its shapes": 1}
    assert eager.stats()["eager_calls"] == {"enforce_eager": 9}


def test_cuda_agrees_with_the_cpu():
    here, there = (ImagePipeline("flux", config="tiny", device=d, dtype="float32") for d in ("cpu", "cuda"))
    for one, wanted in zip(there.generate([request(7)]), here.generate([request(7)]), strict=True):
        torch.testing.assert_close(one.cpu(), wanted, rtol=0, atol=1e-3)
