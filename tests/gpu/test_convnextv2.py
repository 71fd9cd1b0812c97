"""ConvNeXt V2's kernels and its graphs on a GPU."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model, kernels
from fastkernels.kernels import registered
from tests.unit.engine.test_classifier import asked
from tests.unit.kernels.test_convolution import drawn

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
MAPS = [(1, 96, 96, 128), (2, 48, 48, 256), (4, 24, 24, 512), (3, 11, 13, 1024), (2, 7, 5, 40)]


@each_dtype
@pytest.mark.parametrize("shape", MAPS, ids=str)
def test_implementations_agree_with_the_reference_in_float64(shape, dtype):
    channels = shape[-1]
    x = drawn(*shape, dtype=dtype).cuda()
    filters = drawn(channels, 7, 7, 1, dtype=dtype, seed=1).cuda() / 7
    vectors = [drawn(channels, dtype=dtype, seed=seed).cuda() for seed in (2, 3, 4)]
    for name, args in (
        ("depthwise_norm", (x, filters, *vectors, 3, 1e-6)),
        ("response_norm", (x, *vectors[:2], 1e-6, "gelu")),
        ("response_norm", (x, *vectors[:2], 1e-6, "none")),
    ):
        exact = [arg.double() if isinstance(arg, torch.Tensor) else arg for arg in args]
        wanted = getattr(kernels, name)(*exact, impl="reference")
        assert registered[name].choose(args) == "triton"
        for impl in registered[name].names[1:]:
            found = getattr(kernels, name)(*args, impl=impl)
            # Of the size of float32 sums of 9,216 squares, and of two roundings to 16 bits.
            tolerance = (2 * torch.finfo(dtype).eps + 1e-5) * wanted.abs().max()
            assert (found.double() - wanted).abs().max() < tolerance, impl


@each_dtype
@pytest.mark.parametrize("shape", MAPS, ids=str)
def test_response_mlp(shape, dtype):
    """Float32 stays float32 where it is multiplied as three products of tf32."""
    channels, hidden = shape[-1], 4 * shape[-1]
    x, residual = (drawn(*shape, dtype=dtype, seed=seed).cuda() for seed in (0, 1))
    w1 = drawn(hidden, channels, dtype=dtype, seed=2).cuda() / channels**0.5
    w2 = drawn(channels, hidden, dtype=dtype, seed=3).cuda() / hidden**0.5
    b1, weight, bias = (drawn(hidden, dtype=dtype, seed=seed).cuda() for seed in (4, 5, 6))
    args = [x, w1, b1, weight, bias, w2, drawn(channels, dtype=dtype, seed=7).cuda(), residual, 1e-6]
    exact = [arg.double() if isinstance(arg, torch.Tensor) else arg for arg in args]
    wanted = kernels.response_mlp(*exact, impl="reference")
    for impl in registered["response_mlp"].names[1:]:
        found = kernels.response_mlp(*args, impl=impl)
        tolerance = (8 * torch.finfo(dtype).eps + 1e-5) * wanted.abs().max()
        assert (found.double() - wanted).abs().max() < tolerance, impl


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_passes_equal_eager_ones(dtype):
    """The same size four times: eager, captured, replayed; then an odd size and the first again."""
    graphed = Model("convnextv2", config="tiny", device="cuda", dtype=dtype)
    eager = Model("convnextv2", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    for size in [(48, 64)] * 4 + [(33, 47), (48, 64)]:
        for ours, theirs in zip(graphed.run(asked([size] * 3)), eager.run(asked([size] * 3)), strict=True):
            torch.testing.assert_close(ours["logits"], theirs["logits"], rtol=0, atol=1e-6)
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 4)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-2), ("bfloat16", 1e-1)]
)  # of the largest logit
def test_cuda_agrees_with_the_cpu_in_float32(dtype, tolerance):
    here = Model("convnextv2", config="tiny", device="cpu", dtype="float32")
    there = Model("convnextv2", config="tiny", device="cuda", dtype=dtype)
    requests = asked([(48, 64), (33, 47)])
    for ours, theirs in zip(there.run(requests), here.run(requests), strict=True):
        wanted = theirs["logits"]
        assert (ours["logits"].cpu().float() - wanted).abs().max() < tolerance * wanted.abs().max()
