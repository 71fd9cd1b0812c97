"""Stable Diffusion XL on a GPU: attention over fewer keys than queries, its stages and their graphs."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model, kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from tests.encoder_cases import dense_case
from tests.unit.engine.test_guided_images import asked

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("queries", "heads"), [(4096, 10), (1024, 20), (135, 20)])
def test_queries_of_an_image_over_keys_of_a_text(queries, heads, dtype):
    case = dense_case([queries] * 2, [77] * 2, num_heads=heads, head_dim=64, dtype=dtype).on("cuda")
    served = []
    for impl in registered["dense_attention"].names[1:]:
        try:
            found = kernels.dense_attention(*case.args, impl=impl)
        except KernelError:
            continue
        case.check(found)
        served.append(impl)
    assert {"triton", "torch"} <= {*served}, served


def model(dtype: str, device: str = "cuda", **options) -> Model:
    return Model("sdxl", config="tiny", device=device, dtype=dtype, **options)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.3)])
def test_replayed_steps_equal_eager_ones(dtype, tolerance):
    """Prompts, seeds and guidance of others are wrong by about 1."""
    graphed, eager = model(dtype), model(dtype, enforce_eager=True)
    for seeds in ((0, 1), (2, 3), (4, 5)):
        requests = [asked(seed, guidance=3.0 + seed) for seed in seeds]
        found, wanted = graphed.run(requests), eager.run(requests)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one["latents"], other["latents"], rtol=0, atol=tolerance)
        pixels = [each.finish(wanted, requests) for each in (graphed, eager)]
        for one, other in zip(*pixels, strict=True):
            torch.testing.assert_close(one["image"], other["image"], rtol=0, atol=tolerance)
    stats = graphed.stats()
    assert (stats["denoise"]["graphs"], stats["denoise"]["graph_replays"]) == (1, 8)
    for stage in ("text_encoder", "text_encoder_2", "to_pixels"):
        assert (stats[stage]["graphs"], stats[stage]["graph_replays"]) == (1, 2), stage
    for stage in graphed.stages:
        assert stats[stage]["eager_calls"] == {"first call of its shapes": 1}, stage


def test_cuda_agrees_with_the_cpu():
    requests = [asked(7), asked(8, guidance=1.0)]
    here, there = (model("float32", device) for device in ("cpu", "cuda"))
    found, wanted = there.run(requests), here.run(requests)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one["latents"].cpu(), other["latents"], rtol=0, atol=2e-3)
    for one, other in zip(there.finish(found, requests), here.finish(wanted, requests), strict=True):
        torch.testing.assert_close(one["image"].cpu(), other["image"], rtol=0, atol=2e-3)
