"""The kernels of mobile networks on a GPU, and both classifiers: graphs, float32 and 16 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastkernels import Model, kernels
from fastkernels.kernels import registered
from tests.unit.engine.test_encoder import images
from tests.unit.kernels.test_convolution import drawn

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu
ARCHITECTURES = ("mobilenetv4", "efficientnetv2")
each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)

# (images, rows, columns, channels, filters, places, stride, groups, activation): of both real models. Among
# them the stem, windows whose channels a step divides and does not, products of many tiles and of few.
CONVOLUTIONS = {
    "stem": (2, 64, 64, 3, 32, 3, 2, 1, "relu"),
    "edge-32": (2, 64, 64, 32, 128, 3, 2, 1, "relu"),
    "edge-56": (2, 40, 40, 56, 224, 3, 1, 1, "silu"),
    "edge-80": (1, 20, 20, 80, 320, 3, 1, 1, "silu"),
    "wide": (32, 16, 16, 160, 640, 1, 1, 1, "relu"),
    "narrow": (32, 10, 10, 1968, 328, 1, 1, 1, "none"),
    "one-image": (1, 8, 8, 1024, 256, 1, 1, 1, "none"),
    "one-place": (3, 1, 1, 960, 1280, 1, 1, 1, "relu"),
    "odd": (3, 5, 7, 152, 328, 1, 1, 1, "none"),
    "depthwise-3": (4, 20, 20, 1152, 1152, 3, 2, 1152, "silu"),
    "depthwise-5": (4, 16, 16, 640, 640, 5, 1, 640, "none"),
}


def arguments(name: str, dtype: torch.dtype) -> tuple[list[Tensor], list]:
    """Map, filters, bias, gate, residual; stride, padding, groups, activation."""
    count, rows, columns, channels, filters, places, stride, groups, activation = CONVOLUTIONS[name]
    weight = drawn(filters, places, places, channels // groups, seed=1)
    weight *= weight[0].numel() ** -0.5
    shapes = [(filters,), (count, channels), (count, -(-rows // stride), -(-columns // stride), filters)]
    others = [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes, 2)]
    tensors = [drawn(count, rows, columns, channels), weight, others[0], others[1].sigmoid(), others[2]]
    return [each.to(dtype).cuda() for each in tensors], [stride, places // 2, groups, activation]


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert found.is_contiguous()
    tolerance = {torch.float32: 1e-5}.get(dtype, 2 * torch.finfo(dtype).eps) * wanted.abs().max().item()
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=tolerance)


@each_dtype
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("impl", ["triton", "depthwise"])
def test_conv2d_activation(impl: str, name: str, dtype: torch.dtype):
    """Float32 nearly as exact as float32: tf32 would be off by several times the tolerance."""
    (x, weight, bias, gate, residual), how = arguments(name, dtype)
    served = 0
    for optional in ((None, None), (None, residual), (gate, residual)):
        if registered["conv2d_activation"].why_not(impl, [x, weight, bias, *optional, *how]):
            continue
        served += 1
        wide = [each if each is None else each.double() for each in (x, weight, bias, *optional)]
        options = dict(zip(("gate_BC", "residual_BYXO"), optional))
        wanted = kernels.conv2d_activation(
            *wide[:3], *how, gate_BC=wide[3], residual_BYXO=wide[4], impl="reference"
        )
        found = kernels.conv2d_activation(x, weight, bias, *how, **options, impl=impl)
        close(found, wanted, dtype)
        assert torch.equal(found, kernels.conv2d_activation(x, weight, bias, *how, **options, impl=impl))
    is_window_of_many = dtype != torch.float32 and name in ("edge-56", "edge-80")
    assert bool(served) == ((impl == "depthwise") == name.startswith("depthwise") and not is_window_of_many)


@each_dtype
@pytest.mark.parametrize("name", ["depthwise-3", "depthwise-5"])
def test_the_mean_of_a_convolution(name: str, dtype: torch.dtype):
    (x, weight, bias, *_), how = arguments(name, dtype)
    wide = (each.double() for each in (x, weight, bias))
    for found, wanted in zip(
        kernels.conv2d_activation_mean(x, weight, bias, *how, impl="depthwise"),
        kernels.conv2d_activation_mean(*wide, *how, impl="reference"),
    ):
        close(found, wanted, dtype)


@each_dtype
@pytest.mark.parametrize(("batch", "channels", "reduced"), [(1, 1968, 82), (32, 1152, 48), (3, 320, 20)])
def test_squeeze_excite(batch: int, channels: int, reduced: int, dtype: torch.dtype):
    shapes = [(batch, channels), (reduced, channels), (reduced,), (channels, reduced), (channels,)]
    tensors = [drawn(*shape, seed=seed) * shape[-1] ** -0.5 for seed, shape in enumerate(shapes)]
    given = [each.to(dtype).cuda() for each in tensors]
    wanted = kernels.squeeze_excite(*(each.double() for each in given), impl="reference")
    close(kernels.squeeze_excite(*given, impl="triton"), wanted, dtype)


def logits(model: Model, sizes: list[tuple[int, int]], seed: int = 0) -> Tensor:
    return torch.stack([one["logits"].float().cpu() for one in model.run(
        [{"image": image} for image in images(sizes, seed)]
    )])  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_replayed_passes_equal_eager_ones(name: str, dtype: str):
    """The same size four times: eager, captured, replayed; then another size and the first again."""
    graphed = Model(name, config="tiny", device="cuda", dtype=dtype)
    eager = Model(name, config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    for seed, size in enumerate([(64, 96)] * 4 + [(32, 80), (64, 96)]):
        torch.testing.assert_close(logits(graphed, [size] * 3, seed), logits(eager, [size] * 3, seed))
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_cuda_agrees_with_the_cpu(name: str):
    """In float32 to its roundings, in 16 bits to theirs."""
    wanted = logits(Model(name, config="tiny", device="cpu", dtype="float32"), [(64, 96)] * 3)
    for dtype, tolerance in (("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 5e-2)):
        found = logits(Model(name, config="tiny", device="cuda", dtype=dtype), [(64, 96)] * 3)
        assert (found - wanted).abs().max() < tolerance * wanted.abs().max(), dtype
