"""DINOv3 on a GPU: its kernels and its graphs."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model
from tests.pointwise_cases import check
from tests.provider_cases import others
from tests.unit.engine.test_vision_models import asked
from tests.vision_cases import scaled_add_cases, scaled_add_layer_norm_cases

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu
SHAPES = [(261, 4096), (13, 131), (2088, 4096), (0, 64)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", [*scaled_add_cases(SHAPES), *scaled_add_layer_norm_cases(SHAPES)], ids=str)
def test_sums_with_a_scale(case, dtype):
    for impl in others(case.kernel)[1:]:
        check(case, dtype, impl, "cuda")


def model(dtype: str, device: str = "cuda", **options) -> Model:
    return Model("dinov3", config="tiny", device=device, dtype=dtype, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_passes_equal_eager_ones(dtype):
    """One size four times: eager, captured, replayed; then another size and the first again."""
    graphed, eager = model(dtype), model(dtype, enforce_eager=True)
    # Another image's features are off by about 1.
    tolerance = 1e-4 if dtype == "float32" else 0.05
    for seed, size in enumerate([(64, 96)] * 4 + [(32, 160), (64, 96)]):
        batch = asked([size] * 3, seed)
        for ours, theirs in zip(graphed.run(batch), eager.run(batch), strict=True):
            for name in theirs:
                torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=tolerance)
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1), ("float16", 0.02)])
def test_cuda_agrees_with_the_cpu(dtype, tolerance):
    batch = asked([(64, 96), (64, 96), (128, 64)])
    for ours, theirs in zip(model(dtype).run(batch), model("float32", "cpu").run(batch)):
        for name in theirs:
            torch.testing.assert_close(ours[name].cpu().float(), theirs[name], rtol=0, atol=tolerance)
