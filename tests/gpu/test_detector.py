"""The detector's kernels and its graphs on a GPU."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from fastkernels.engine.detector import Detector
from fastkernels.kernels import registered
from tests.unit.engine.test_encoder import images
from tests.unit.kernels.test_convolution import CONVOLUTIONS, close, convolution, drawn

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu
each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)


@each_dtype
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("impl", registered["conv2d"].names)
def test_conv2d(impl, name, dtype):
    args, wanted = convolution(name, dtype)
    args = [arg.cuda() if isinstance(arg, torch.Tensor) else arg for arg in args]
    if reason := registered["conv2d"].why_not(impl, args):
        pytest.skip(reason)
    close(kernels.conv2d(*args, impl=impl).cpu(), wanted, sums=args[1][0].numel())


@pytest.mark.parametrize(
    ("kernel", "shapes", "rest"),
    [
        ("bias_activation", [(4, 40, 40, 80), (80,)], ("silu",)),
        ("max_pool2d", [(4, 20, 20, 128)], (5, 1, 2)),
        ("upsample_concat", [(4, 20, 20, 256), (4, 40, 40, 128)], ()),
        ("box_decode", [(4, 40, 40, 64)], (16,)),
        ("top_detections", [(4, 8400, 4), (4, 8400, 80)], (300,)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@each_dtype
def test_implementations_agree_with_the_reference(kernel, shapes, rest, dtype):
    args = [drawn(*shape, dtype=dtype, seed=seed).cuda() for seed, shape in enumerate(shapes)]
    function = getattr(kernels, kernel)
    expected = function(*args, *rest, impl="reference")
    served = 0
    for impl in registered[kernel].names[1:]:
        if registered[kernel].why_not(impl, [*args, *rest]):
            continue
        served += 1
        found = function(*args, *rest, impl=impl)
        pairs = zip(found, expected) if isinstance(expected, tuple) else [(found, expected)]
        for ours, theirs in pairs:
            tolerance = 4 * torch.finfo(dtype).eps * theirs.abs().max().item()
            torch.testing.assert_close(
                ours, theirs, rtol=0, atol=tolerance if ours.is_floating_point() else 0
            )
    assert served


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_replayed_passes_equal_eager_ones(dtype):
    """The same size four times: eager, captured, replayed; then another size and the first again."""
    graphed = Detector("yolov10", config="tiny", device="cuda", dtype=dtype)
    eager = Detector("yolov10", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    sizes = [(64, 96)] * 4 + [(32, 160), (64, 96)]
    for seed, size in enumerate(sizes):
        batch = images([size] * 3, seed)
        for ours, theirs in zip(graphed.detect(batch), eager.detect(batch), strict=True):
            torch.testing.assert_close(ours.scores_K, theirs.scores_K, rtol=0, atol=1e-2)
    stats = graphed.stats()["detect"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 4)


def test_cuda_agrees_with_the_cpu():
    here, there = (Detector("yolov10", config="tiny", device=d, dtype="float32") for d in ("cpu", "cuda"))
    for ours, theirs in zip(there.detect(images([(64, 96)] * 3)), here.detect(images([(64, 96)] * 3))):
        torch.testing.assert_close(ours.scores_K.cpu(), theirs.scores_K, rtol=0, atol=1e-4)
