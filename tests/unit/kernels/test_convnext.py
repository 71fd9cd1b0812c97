"""The kernels of ConvNeXt V2: every implementation on this machine against PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels import kernels
from fastkernels.kernels import registered
from tests.unit.kernels.implementations import REFERENCE, TORCH, TRITON
from tests.unit.kernels.test_convolution import close, drawn, each_dtype

EPS = 1e-6
each = pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
PARTS = pytest.param("parts", id="parts")
# (images, rows, columns, channels): several tiles of pixels and of channels, and none of them whole.
MAPS = [(2, 5, 7, 40), (3, 9, 11, 12), (1, 2, 3, 600), (2, 1, 1, 16)]


def responded(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """The formula in float64."""
    h = F.gelu(x.double()) if activation == "gelu" else x.double()
    g = h.square().sum((1, 2)).sqrt()
    n = g / (g.mean(1, keepdim=True) + EPS)
    return weight.double() * (h * n[:, None, None]) + bias.double() + h


@each_dtype
@pytest.mark.parametrize("activation", ["gelu", "none"])
@each
def test_response_norm(impl: str, activation: str, dtype: torch.dtype):
    """Channels of different loudness, images too."""
    for shape in MAPS:
        x = drawn(*shape, dtype=dtype) * torch.linspace(0.1, 3, shape[-1]).to(dtype)
        x *= torch.linspace(0.5, 2, shape[0]).to(dtype)[:, None, None, None]
        weight, bias = (drawn(shape[-1], dtype=dtype, seed=seed) for seed in (1, 2))
        found = kernels.response_norm(x, weight, bias, EPS, activation, impl=impl)
        close(found, responded(x, weight, bias, activation), sums=shape[1] * shape[2])


@each
def test_an_epsilon_keeps_a_map_of_zeros_finite_and_weighs_where_maps_are_quiet(impl: str):
    weight, bias = drawn(24, seed=1), drawn(24, seed=2)
    silent = kernels.response_norm(torch.zeros(2, 3, 4, 24), weight, bias, EPS, impl=impl)
    assert torch.equal(silent, bias.expand_as(silent))
    quiet = drawn(2, 3, 4, 24) * 1e-6
    wanted = responded(quiet, weight, torch.zeros(24), "none")
    close(kernels.response_norm(quiet, weight, torch.zeros(24), EPS, impl=impl), wanted, sums=12)


@each
def test_squares_of_float16_are_summed_in_float32(impl: str):
    """9,216 pixels of 60: their squares are 33 million, the largest float16 is 65,504."""
    x = 60 * drawn(1, 96, 96, 8, dtype=torch.float16)
    weight, bias = (drawn(8, dtype=torch.float16, seed=seed) for seed in (1, 2))
    close(kernels.response_norm(x, weight, bias, EPS, impl=impl), responded(x, weight, bias, "none"))


def test_another_activation_is_refused():
    with pytest.raises(ValueError, match="'silu'; there are gelu, none"):
        kernels.response_norm(drawn(1, 2, 2, 4), drawn(4), drawn(4), EPS, "silu")  # type: ignore[arg-type]


@each_dtype
@pytest.mark.parametrize("impl", [REFERENCE, PARTS, TRITON])
def test_depthwise_norm(impl: str, dtype: torch.dtype):
    """Maps that are smaller than the filter, and larger; with padding and without."""
    for shape, places, padding in (*((one, 7, 3) for one in MAPS), ((2, 6, 5, 40), 3, 0)):
        x, channels = drawn(*shape, dtype=dtype), shape[-1]
        filters = drawn(channels, places, places, 1, dtype=dtype, seed=1) / places
        bias, norm_weight, norm_bias = (drawn(channels, dtype=dtype, seed=seed) for seed in (2, 3, 4))
        args = (x, filters, bias, norm_weight, norm_bias, padding, EPS)
        x_BCYX, filters_C1UV = (t.double().permute(0, 3, 1, 2) for t in (x, filters))
        h = F.conv2d(x_BCYX, filters_C1UV, bias.double(), padding=padding, groups=channels)
        rest = (norm_weight.double(), norm_bias.double(), EPS)
        wanted = F.layer_norm(h.permute(0, 2, 3, 1), (channels,), *rest)
        sums = places**2 + channels
        if impl == "parts" and dtype != torch.float32:  # the convolution is rounded, too
            sums = int((torch.finfo(dtype).eps / torch.finfo(torch.float32).eps) ** 2)
        close(kernels.depthwise_norm(*args, impl=impl), wanted, sums=sums)


@each_dtype
@pytest.mark.parametrize("impl", [REFERENCE, PARTS, TRITON])
def test_response_mlp(impl: str, dtype: torch.dtype):
    for images, rows, columns, channels in MAPS:
        hidden = 3 * channels
        x, residual = (drawn(images, rows, columns, channels, dtype=dtype, seed=seed) for seed in (0, 1))
        w1, w2 = drawn(hidden, channels, dtype=dtype, seed=2), drawn(channels, hidden, dtype=dtype, seed=3)
        w1, w2 = w1 / channels**0.5, w2 / hidden**0.5
        b1, weight, bias = (drawn(hidden, dtype=dtype, seed=seed) for seed in (4, 5, 6))
        b2 = drawn(channels, dtype=dtype, seed=7)
        found = kernels.response_mlp(x, w1, b1, weight, bias, w2, b2, residual, EPS, impl=impl)
        h = responded(F.linear(x.double(), w1.double(), b1.double()), weight, bias, "gelu")
        wanted = residual.double() + F.linear(h, w2.double(), b2.double())
        sums = hidden + channels + rows * columns
        if impl != "reference" and dtype != torch.float32:  # each step is rounded
            sums = 2 * int((torch.finfo(dtype).eps / torch.finfo(torch.float32).eps) ** 2)
        close(found, wanted, sums=sums)


def test_filters_over_several_channels_are_refused():
    x, vector = drawn(1, 4, 4, 8), drawn(8)
    with pytest.raises(ValueError, match="not one for each of 8 channels"):
        kernels.depthwise_norm(x, drawn(8, 3, 3, 2), vector, vector, vector, 1, EPS)


@pytest.mark.parametrize("impl", [TRITON])
def test_maps_that_are_no_rows_in_memory_are_left_to_others(impl: str):
    x, vector = drawn(2, 4, 5, 8).transpose(1, 2), drawn(8)
    for name, args in (
        ("response_norm", (x, vector, vector, EPS, "gelu")),
        ("depthwise_norm", (x, drawn(8, 3, 3, 1), vector, vector, vector, 1, EPS)),
    ):
        assert "contiguous" in (registered[name].why_not(impl, args) or "")
        kernel = getattr(kernels, name)
        torch.testing.assert_close(kernel(*args), kernel(*args, impl="reference"))
