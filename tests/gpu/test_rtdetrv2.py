"""RT-DETRv2 on a GPU: its kernels and its graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.engine.detector import Detector
from fastkernels.kernels import registered
from tests.unit.engine.test_encoder import images
from tests.unit.kernels.test_convolution import drawn
from tests.unit.kernels.test_detr import MAPS, sampling

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu
each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
# Maps, heads, features of a head, places in each map: odd ones, and those of the model at 640 x 640 pixels.
SAMPLINGS: list[Any] = [*((maps, 3, 20, 4) for maps in MAPS), ([(80, 80), (40, 40), (20, 20)], 8, 32, 4)]


@each_dtype
@pytest.mark.parametrize("case", SAMPLINGS, ids=str)
@pytest.mark.parametrize("impl", registered["deformable_sampling"].names)
def test_deformable_sampling(impl, case, dtype):
    """Against float64 on the CPU."""
    maps, heads, size, points = case
    value, sides, places, weights = sampling(maps, heads, size, points, dtype)
    wanted = kernels.deformable_sampling(
        value.double(), sides, places.double(), weights.double(), impl="reference"
    )
    found = kernels.deformable_sampling(value.cuda(), sides, places.cuda(), weights.cuda(), impl=impl)
    tolerance = 1e-5 + torch.finfo(dtype).eps * wanted.abs().max().item()
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        ("avg_pool2d", lambda dtype: (drawn(4, 160, 161, 256, dtype=dtype), 2, 2, True)),
        ("top_cells", lambda dtype: (drawn(4, 8400, 80, dtype=dtype), 300)),
        ("box_refine", lambda dtype: (drawn(4, 300, 4, dtype=dtype), torch.rand(4, 300, 4))),
    ],
    ids=["avg_pool2d", "top_cells", "box_refine"],
)
@each_dtype
def test_implementations_agree_with_the_reference(kernel, args, dtype):
    args = [arg.cuda() if isinstance(arg, Tensor) else arg for arg in args(dtype)]
    function = getattr(kernels, kernel)
    wanted = function(*args, impl="reference")
    for impl in registered[kernel].names[1:]:
        found = function(*args, impl=impl)
        tolerance = 4 * torch.finfo(found.dtype).eps if found.is_floating_point() else 0
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_replayed_passes_equal_eager_ones(dtype):
    """One size four times: eager, captured, replayed; then another size and the first again."""
    graphed = Detector("rtdetrv2", config="tiny", device="cuda", dtype=dtype)
    eager = Detector("rtdetrv2", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    for seed, size in enumerate([(64, 96)] * 4 + [(32, 160), (64, 96)]):
        batch = images([size] * 3, seed)
        for ours, theirs in zip(graphed.detect(batch), eager.detect(batch), strict=True):
            torch.testing.assert_close(ours.scores_K, theirs.scores_K, rtol=0, atol=1e-2)
    stats = graphed.stats()["detect"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 4)


def test_cuda_agrees_with_the_cpu():
    here, there = (
        Detector("rtdetrv2", config="tiny", device=device, dtype="float32") for device in ("cpu", "cuda")
    )
    batch = images([(64, 96)] * 3)
    for ours, theirs in zip(there.detect(batch), here.detect(batch), strict=True):
        torch.testing.assert_close(ours.scores_K.cpu(), theirs.scores_K, rtol=0, atol=1e-4)
