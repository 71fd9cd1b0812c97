"""V-JEPA 2 on a GPU: its kernel and its graphs."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model
from fastkernels.kernels import registered
from tests.pointwise_cases import check
from tests.unit.engine.test_vision_models import TARGETS, clips
from tests.vision_cases import rope_by_feature_cases

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", rope_by_feature_cases([(768, 16, 64), (8192, 12, 32), (5, 3, 12)]), ids=str)
def test_rope_by_feature(case, dtype):
    for impl in registered[case.kernel].names[1:]:
        check(case, dtype, impl, "cuda")


def model(dtype: str, device: str = "cuda", **options) -> Model:
    return Model("vjepa2", config="tiny", device=device, dtype=dtype, **options)


def asked(frames: list[int], seed: int = 0) -> list[dict]:
    return [clip | {"target_mask": TARGETS + seed} for clip in clips(frames, seed)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_passes_equal_eager_ones(dtype):
    """One length four times: eager, captured, replayed; then another one and the first again."""
    graphed, eager = model(dtype), model(dtype, enforce_eager=True)
    # Other places or another video are off by about 1.
    tolerance = 1e-4 if dtype == "float32" else 0.05
    for seed, frames in enumerate([8, 8, 8, 8, 4, 8]):
        batch = asked([frames] * 2, seed)
        for ours, theirs in zip(graphed.run(batch), eager.run(batch), strict=True):
            for name in theirs:
                torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=tolerance)
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.15), ("float16", 0.03)])
def test_cuda_agrees_with_the_cpu(dtype, tolerance):
    batch = [*asked([8, 8, 4]), *(clip | {"classify": True} for clip in clips([8]))]
    for ours, theirs in zip(model(dtype).run(batch), model("float32", "cpu").run(batch), strict=True):
        for name in theirs:
            torch.testing.assert_close(ours[name].cpu().float(), theirs[name], rtol=0, atol=tolerance)
