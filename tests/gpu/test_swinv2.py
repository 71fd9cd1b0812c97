"""Swin V2's kernels and its graphs on a GPU."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model, kernels
from fastkernels.kernels import registered
from tests.unit.engine.test_classifier import asked
from tests.unit.kernels.test_convolution import drawn
from tests.unit.kernels.test_window_attention import CASES, arguments

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def check(name: str, args: list, tolerance: float) -> None:
    """Every implementation within a tolerance of the largest value; Triton is the first."""
    exact = [arg.double() if isinstance(arg, torch.Tensor) else arg for arg in args]
    wanted = getattr(kernels, name)(*exact, impl="reference")
    assert registered[name].choose(args) == "triton"
    for impl in registered[name].names[1:]:
        found = getattr(kernels, name)(*args, impl=impl)
        assert (found.double() - wanted).abs().max() < tolerance * wanted.abs().max(), impl


@each_dtype
@pytest.mark.parametrize("name", CASES)
def test_window_attention_of_odd_shapes(name, dtype):
    args = [arg.cuda() if isinstance(arg, torch.Tensor) else arg for arg in arguments(name, dtype)]
    check("window_attention", args, 60 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-4)


@each_dtype
@pytest.mark.parametrize(
    ("side", "heads", "window", "shift"), [(48, 6, 12, 6), (128, 6, 12, 6), (12, 24, 12, 0), (16, 48, 6, 0)]
)  # of the real model, at 192 and 512 pixels
def test_window_attention_of_the_real_model(side, heads, window, shift, dtype):
    qkv = drawn(2, side, side, 96 * heads, dtype=dtype).cuda()
    filler = drawn(96 * heads, dtype=dtype, seed=1).cuda()
    scale, table = torch.logspace(0, 1, heads), 8 + drawn(heads, (2 * window - 1) ** 2, seed=2)
    args = [qkv, filler, scale.cuda(), table.cuda(), window, shift]
    check("window_attention", args, 20 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5)


@each_dtype
def test_layer_norm_add(dtype):
    for shape in ((32, 48, 48, 192), (1, 6, 6, 1536), (3, 7, 33)):
        tensors = [drawn(*shape, dtype=dtype, seed=seed).cuda() for seed in (0, 1)]
        tensors += [drawn(shape[-1], dtype=dtype, seed=seed).cuda() for seed in (2, 3)]
        check("layer_norm_add", [*tensors, 1e-5], 2 * torch.finfo(dtype).eps + 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_passes_equal_eager_ones(dtype):
    """The same size four times: eager, captured, replayed; then one with other masks and the first again."""
    graphed = Model("swinv2", config="tiny", device="cuda", dtype=dtype)
    eager = Model("swinv2", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    for size in [(40, 40)] * 4 + [(52, 20), (40, 40)]:
        for ours, theirs in zip(graphed.run(asked([size] * 3)), eager.run(asked([size] * 3)), strict=True):
            torch.testing.assert_close(ours["logits"], theirs["logits"], rtol=0, atol=1e-6)
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-2), ("bfloat16", 1e-1)])
def test_cuda_agrees_with_the_cpu_in_float32(dtype, tolerance):
    """To a share of the largest logit."""
    here = Model("swinv2", config="tiny", device="cpu", dtype="float32")
    there = Model("swinv2", config="tiny", device="cuda", dtype=dtype)
    requests = asked([(32, 32), (52, 20)])
    for ours, theirs in zip(there.run(requests), here.run(requests), strict=True):
        wanted = theirs["logits"]
        assert (ours["logits"].cpu().float() - wanted).abs().max() < tolerance * wanted.abs().max()
