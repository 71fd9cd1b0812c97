"""Oasis on a GPU: its kernel, whole rollouts as graphs, and its decoder in float32."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model
from fastkernels.kernels import registered
from tests.diffusion_cases import frame_attention_cases
from tests.pointwise_cases import check
from tests.unit.engine.test_world_model import clip

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

SHAPES = [(1152, 1, 32, 16, 64), (288, 2, 9, 16, 64), (144, 8, 8, 16, 64), (3, 2, 7, 3, 40)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", frame_attention_cases(SHAPES), ids=str)
def test_frame_attention(case, dtype):
    for impl in registered[case.kernel].names[1:]:
        check(case, dtype, impl, "cuda")


def model(dtype: str, device: str = "cuda", **options) -> Model:
    return Model("oasis", config="tiny", device=device, dtype=dtype, **options)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_replayed_rollouts_equal_eager_ones(dtype):
    """One length three times: eager, captured, replayed; then another one and the first again."""
    graphed, eager = model(dtype), model(dtype, enforce_eager=True)
    # Another clip or a stale frame is off by about 1.
    tolerance = 1e-3 if dtype == "float32" else 0.1
    for seed, frames in enumerate([3, 3, 3, 5, 3]):
        asked = [clip(frames, 2 * seed), clip(frames, 2 * seed + 1)]
        for ours, theirs in zip(graphed.run(asked), eager.run(asked), strict=True):
            torch.testing.assert_close(ours["latents"], theirs["latents"], rtol=0, atol=tolerance)
    stats = graphed.stats()["rollout"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("float16", 0.1), ("bfloat16", 0.5)])
def test_cuda_agrees_with_the_cpu(dtype, tolerance):
    asked = [clip(3, 1), clip(3, 2)]
    here, there = model("float32", "cpu"), model(dtype)
    expected, found = here.run(asked), there.run(asked)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours["latents"].cpu(), theirs["latents"], rtol=0, atol=tolerance)
    # The same latents: only the decoder differs, float32 whatever the model is.
    videos = [face.finish(expected, asked) for face in (there, here)]
    for ours, theirs in zip(*videos, strict=True):
        torch.testing.assert_close(ours["video"].cpu(), theirs["video"], rtol=0, atol=2e-3)
