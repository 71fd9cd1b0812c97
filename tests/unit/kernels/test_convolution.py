"""The kernels of convolutional nets: every implementation on this machine against PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels import kernels
from fastkernels.kernels import conv2d_triton, registered
from fastkernels.kernels.conv2d import is_slice
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each = pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual: Tensor, wanted: Tensor, sums: int = 1) -> None:
    """Within a rounding of the dtype and of float32 sums of that many products."""
    assert actual.is_contiguous()
    eps = torch.finfo(actual.dtype).eps + sums**0.5 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(actual.double(), wanted, rtol=0, atol=4 * eps * wanted.abs().max().item())


# (channels, filters, places, stride, padding, groups)
CONVOLUTIONS = {
    "stem": (3, 16, 3, 2, 1, 1),
    "3x3": (16, 24, 3, 1, 1, 1),
    "1x1": (24, 40, 1, 1, 0, 1),
    "1x1-stride-2": (24, 40, 1, 2, 0, 1),
    "patches": (6, 20, 2, 2, 0, 1),
    "1x1-padded": (24, 40, 1, 1, 1, 1),
    "depthwise": (24, 24, 3, 1, 1, 24),
    "depthwise-stride-2": (160, 160, 3, 2, 1, 160),
    "depthwise-5x5": (40, 40, 5, 1, 2, 40),
    "no-padding": (8, 8, 3, 1, 0, 8),
    "groups": (12, 18, 5, 3, 1, 3),
    "multiplier": (6, 12, 3, 1, 1, 6),
}


def convolution(name: str, dtype: torch.dtype) -> tuple[tuple, Tensor]:
    """Arguments and result; rows and columns differ, and neither is a multiple of the stride. The pixels are
    several tiles, one of which has pixels of both images."""
    channels, filters, places, stride, padding, groups = CONVOLUTIONS[name]
    x = drawn(2, 5, 7, channels, dtype=dtype)
    weight = drawn(filters, places, places, channels // groups, dtype=dtype, seed=1)
    bias = drawn(filters, dtype=dtype, seed=2)
    x_BCYX, weight_OIUV = (t.double().permute(0, 3, 1, 2) for t in (x, weight))
    wanted = F.conv2d(x_BCYX, weight_OIUV, bias.double(), stride, padding, 1, groups).permute(0, 2, 3, 1)
    return (x, weight, bias, stride, padding, groups), wanted


@each_dtype
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, "gemm", TRITON])
def test_conv2d(impl: str, name: str, dtype: torch.dtype):
    serves = {
        "gemm": ("1x1", "patches"),
        "triton": ("depthwise", "depthwise-stride-2", "depthwise-5x5", "no-padding"),
    }
    args, wanted = convolution(name, dtype)
    reason = registered["conv2d"].why_not(impl, args)
    assert (reason is None) == (name in serves.get(impl, CONVOLUTIONS)), reason
    if reason is not None:
        return
    close(kernels.conv2d(*args, impl=impl), wanted, sums=args[1][0].numel())
    without = kernels.conv2d(args[0], args[1], None, *args[3:], impl=impl)
    close(without, wanted - args[2].double(), sums=args[1][0].numel())


@pytest.mark.parametrize("name", ["depthwise", "depthwise-stride-2", "depthwise-5x5", "no-padding"])
@pytest.mark.parametrize("impl", [TRITON])
def test_strips_of_columns(impl: str, name: str, monkeypatch: pytest.MonkeyPatch):
    """As where the processors are busy. Rows of 7, 5 and 4 columns end within a strip, or with one."""
    monkeypatch.setattr(conv2d_triton, "RESULTS_OF_A_PROCESSOR", 1)
    args, wanted = convolution(name, torch.float32)
    close(kernels.conv2d(*args, impl=impl), wanted, sums=args[1][0].numel())


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_a_slice_of_channels_is_read_where_it_lies(impl: str):
    (x, *rest), wanted = convolution("depthwise", torch.float32)
    wide = torch.cat((torch.full_like(x, torch.nan), x), -1)
    part = wide.chunk(2, -1)[1]
    assert is_slice(part)
    assert not is_slice(x.transpose(1, 2))
    close(kernels.conv2d(part, *rest, impl=impl), wanted, sums=9)


def test_filters_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="18 filters of 4 channels in 2 groups do not fit 12 channels"):
        kernels.conv2d(drawn(1, 4, 4, 12), drawn(18, 3, 3, 4), None, 1, 1, 2)


ACTIVATIONS = {"silu": F.silu, "relu": F.relu, "none": lambda x: x}
DEPTHWISE = pytest.param("depthwise", id="triton-depthwise", marks=TRITON.marks)
DEPTHWISE_ONES = ("depthwise", "depthwise-stride-2", "depthwise-5x5", "no-padding")


@each_dtype
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("impl", [REFERENCE, "parts", TRITON, DEPTHWISE])
def test_conv2d_activation(impl: str, name: str, dtype: torch.dtype):
    """With and without a gate of each image's channels and a residual, each activation once."""
    (x, weight, bias, *how), _ = convolution(name, dtype)
    channels = x.shape[-1]
    gate = drawn(2, channels, dtype=dtype, seed=3).sigmoid()
    for activation, gated, added in (("silu", False, False), ("relu", True, False), ("none", True, True)):
        gated_BYXC = x.double() * gate.double()[:, None, None] if gated else x.double()
        o_BYXO = F.conv2d(
            gated_BYXC.permute(0, 3, 1, 2),
            weight.double().permute(0, 3, 1, 2),
            bias.double(),
            *how[:2],
            1,
            how[2],
        ).permute(0, 2, 3, 1)
        residual = drawn(*o_BYXO.shape, dtype=dtype, seed=4)
        wanted = ACTIVATIONS[activation](o_BYXO) + (residual.double() if added else 0)
        optional = (gate if gated else None, residual if added else None)
        reason = registered["conv2d_activation"].why_not(impl, [x, weight, bias, *optional, *how, activation])
        served = {
            "depthwise": name in DEPTHWISE_ONES and not (gated or added),
            "triton": name not in (*DEPTHWISE_ONES, "groups", "multiplier"),
        }
        assert (reason is None) == served.get(impl, True), reason
        if reason is None:
            found = kernels.conv2d_activation(
                x, weight, bias, *how, activation, gate_BC=optional[0], residual_BYXO=optional[1], impl=impl
            )
            close(found, wanted, sums=4 * weight[0].numel())


@each_dtype
@pytest.mark.parametrize("shape", [(5, 3, 1, 1100), (3, 40, 3, 300)], ids=str)
@pytest.mark.parametrize("impl", [TRITON])
def test_programs_that_share_a_sum(
    impl: str, shape: tuple[int, int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """As on a GPU with many processors: few tiles, several programs each, the last with fewer inputs."""
    from fastkernels.kernels import conv2d_activation_triton as module

    side, filters, places, channels = shape
    monkeypatch.setattr(module, "multiprocessors", lambda device: 64)
    monkeypatch.setattr(module, "MOST_CHANNELS", channels)
    x = drawn(2, side, side, channels, dtype=dtype)
    weight = drawn(filters, places, places, channels, dtype=dtype, seed=1)
    bias, gate = drawn(filters, dtype=dtype, seed=2), drawn(2, channels, dtype=dtype, seed=3)
    o_BYXO = drawn(2, side, side, filters, dtype=dtype, seed=4)
    tile = module.tile_of(2 * side * side, filters, places * places, channels, x.element_size(), 64)
    assert tile.splits > 1
    args = (x, weight, bias, 1, places // 2, 1, "relu")
    for optional in ({}, {"gate_BC": gate, "residual_BYXO": o_BYXO}):
        wide = {name: each.double() for name, each in optional.items()}
        wanted = kernels.conv2d_activation(
            *(a.double() for a in args[:3]), *args[3:], **wide, impl="reference"
        )
        for _ in range(2):  # counters are left as they were found
            close(kernels.conv2d_activation(*args, **optional, impl=impl), wanted, sums=4 * weight[0].numel())


@each_dtype
@pytest.mark.parametrize("name", ["depthwise-stride-2", "depthwise-5x5"])
@pytest.mark.parametrize("impl", [REFERENCE, "parts", DEPTHWISE])
def test_the_mean_of_a_convolution(impl: str, name: str, dtype: torch.dtype):
    (x, weight, bias, *how), sums = convolution(name, dtype)
    found, mean = kernels.conv2d_activation_mean(x, weight, bias, *how, "silu", impl=impl)
    close(found, F.silu(sums), sums=weight[0].numel())
    close(mean, F.silu(sums).mean((1, 2)), sums=weight[0].numel())


def test_windows_of_many_channels_are_left_to_cudnn_in_16_bits():
    x, weight, bias = drawn(1, 4, 4, 40), drawn(8, 3, 3, 40), drawn(8)
    for dtype, is_served in ((torch.float32, True), (torch.bfloat16, False)):
        args = [each.to(dtype) for each in (x, weight, bias)]
        reason = (
            registered["conv2d_activation"]
            .implementation("triton")
            .limits("conv2d_activation")(*args, None, None, 1, 1, 1, "relu")
        )
        assert (reason is None) == is_served, reason


def test_what_does_not_fit_a_convolution_is_refused():
    x, weight, bias = drawn(2, 4, 4, 8), drawn(6, 1, 1, 8), drawn(6)
    with pytest.raises(ValueError, match=r"gate is \[1, 8\], it must be \[2, 8\]"):
        kernels.conv2d_activation(x, weight, bias, 1, 0, 1, "relu", gate_BC=drawn(1, 8))
    with pytest.raises(ValueError, match=r"residual is .* must be \[2, 4, 4, 6\]"):
        kernels.conv2d_activation(x, weight, bias, 1, 0, 1, "relu", residual_BYXO=x)
    with pytest.raises(ValueError, match="'gelu'"):
        kernels.conv2d_activation(x, weight, bias, 1, 0, 1, "gelu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no place"):
        kernels.conv2d_activation_mean(x[:, :0], drawn(8, 1, 1, 1), drawn(8), 1, 0, 8, "relu")


@each_dtype
@pytest.mark.parametrize("impl", [REFERENCE, "parts", TRITON])
def test_squeeze_excite(impl: str, dtype: torch.dtype):
    mean = drawn(3, 40, dtype=dtype)
    layers = [drawn(*s, dtype=dtype, seed=i) for i, s in enumerate([(10, 40), (10,), (40, 10), (40,)], 1)]
    reduce, bias, expand, expand_bias = (each.double() / each[0].numel() ** 0.5 for each in layers)
    layers = [each.to(dtype) for each in (reduce, bias, expand, expand_bias)]
    reduce, bias, expand, expand_bias = (each.double() for each in layers)
    wanted = torch.sigmoid(F.linear(F.silu(F.linear(mean.double(), reduce, bias)), expand, expand_bias))
    close(kernels.squeeze_excite(mean, *layers, impl=impl), wanted, sums=50)
    with pytest.raises(ValueError, match="40 channels"):
        kernels.squeeze_excite(mean, layers[2], *layers[1:])


@each_dtype
@pytest.mark.parametrize("name", ["silu", "relu", "none"])
@each
def test_bias_activation(impl: str, name: str, dtype: torch.dtype):
    x, bias = drawn(2, 5, 7, 24, dtype=dtype), drawn(24, dtype=dtype, seed=1)
    total = x.double() + bias.double()
    wanted = ACTIVATIONS[name](total)
    close(kernels.bias_activation(x, bias, name, impl=impl), wanted, sums=4)
    close(kernels.bias_activation(x[..., 3:20], bias[3:20], name, impl=impl), wanted[..., 3:20], sums=4)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="'mish'"):
        kernels.bias_activation(drawn(2, 3), drawn(3), "mish")  # type: ignore[arg-type]


@each_dtype
@pytest.mark.parametrize("window", [(5, 1, 2), (3, 2, 1), (2, 2, 0)], ids=str)
@each
def test_max_pool2d(impl: str, window: tuple[int, int, int], dtype: torch.dtype):
    """Negative values at the edges: places outside the map are no zeros."""
    x = drawn(2, 9, 6, 40, dtype=dtype) - 5
    wanted = F.max_pool2d(x.double().permute(0, 3, 1, 2), *window).permute(0, 2, 3, 1)
    found = kernels.max_pool2d(x, *window, impl=impl)
    assert torch.equal(found.double(), wanted)
    assert found.is_contiguous()


@each_dtype
@each
def test_mean_pool(impl: str, dtype: torch.dtype):
    """Of maps and tokens, of a view of them, and of as many places as one program does not hold at once."""
    for shape in ((3, 5, 7, 40), (2, 300, 33)):
        x = drawn(*shape, dtype=dtype) + 3
        for some in (x, x[:, 2:]):
            found = kernels.mean_pool(some, impl=impl)
            close(found, some.double().flatten(1, -2).mean(1), sums=some[0, ..., 0].numel())
            assert found.is_contiguous()


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no place"):
        kernels.mean_pool(drawn(2, 0, 8))
    with pytest.raises(ValueError, match="places between"):
        kernels.mean_pool(drawn(2, 8))


def test_windows_without_a_value_are_refused():
    with pytest.raises(ValueError, match="padding of 2"):
        kernels.max_pool2d(drawn(1, 4, 4, 8), 3, 1, 2)


@each_dtype
@each
def test_upsample_concat(impl: str, dtype: torch.dtype):
    x, skip = drawn(3, 2, 5, 24, dtype=dtype), drawn(3, 4, 10, 200, dtype=dtype, seed=1)
    found = kernels.upsample_concat(x, skip, impl=impl)
    wide = F.interpolate(x.permute(0, 3, 1, 2).float(), scale_factor=2, mode="nearest").permute(0, 2, 3, 1)
    assert torch.equal(found, torch.cat((wide.to(dtype), skip), -1))
    assert found.is_contiguous()


def test_maps_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="not twice as large"):
        kernels.upsample_concat(drawn(1, 2, 5, 8), drawn(1, 5, 10, 8))


@each_dtype
@each
def test_box_decode(impl: str, dtype: torch.dtype):
    logits = drawn(2, 3, 5, 64, dtype=dtype) * 4
    found = kernels.box_decode(logits, 16, impl=impl)
    assert (found.dtype, found.shape) == (torch.float32, (2, 15, 4))
    for image in range(2):
        for cell in range(15):
            sides = logits[image, cell // 5, cell % 5].double().view(4, 16)
            left, top, right, bottom = (sides.softmax(-1) * torch.arange(16)).sum(-1).tolist()
            x, y = cell % 5 + 0.5, cell // 5 + 0.5
            wanted = torch.tensor([x - left, y - top, x + right, y + bottom]) * 16
            torch.testing.assert_close(found[image, cell], wanted, rtol=0, atol=1e-3)


@each
def test_one_hot_bins_give_their_index(impl: str):
    logits = torch.full((1, 1, 16, 4, 16), -1e4)
    for bin_ in range(16):
        logits[0, 0, bin_, :, bin_] = 1e4
    boxes = kernels.box_decode(logits.view(1, 1, 16, 64), 8, impl=impl)
    cells = torch.arange(16) + 0.5
    assert torch.equal(boxes[0, :, 0], (cells - torch.arange(16)) * 8)
    assert torch.equal(boxes[0, :, 3], (0.5 + torch.arange(16)) * 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_top_detections_with_ties(impl: str, dtype: torch.dtype):
    """Few different logits, both zeros among them: order decides almost everywhere."""
    logits = (drawn(3, 60, 5) * 1.5).round().to(dtype)
    logits[logits == 0] *= drawn(3, 60, 5, seed=3)[logits == 0].sign().to(dtype)
    assert ((logits == 0) & logits.signbit()).any()
    boxes = drawn(3, 60, 4, seed=2)
    found, scores, labels = kernels.top_detections(boxes, logits, 20, impl=impl)
    for image in range(3):
        values = logits[image].tolist()
        cells = sorted(range(60), key=lambda n: -max(values[n]))[:20]
        pairs = sorted(((n, c) for n in cells for c in range(5)), key=lambda pair: -values[pair[0]][pair[1]])[
            :20
        ]
        assert labels[image].tolist() == [c for _, c in pairs]
        assert torch.equal(found[image], boxes[image, [n for n, _ in pairs]])
        wanted = torch.tensor([values[n][c] for n, c in pairs]).sigmoid()
        torch.testing.assert_close(scores[image], wanted)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_fewer_cells_than_detections(impl: str):
    found, scores, labels = kernels.top_detections(drawn(2, 7, 4), drawn(2, 7, 3, seed=1), 300, impl=impl)
    assert (found.shape, scores.shape, labels.shape) == ((2, 7, 4), (2, 7), (2, 7))
    assert (scores.diff() <= 0).all()
