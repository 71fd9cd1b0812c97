"""A depthwise convolution of stride 1, and layer normalisation of each pixel behind it, channels last.

    h[b, y, x, c] = bias[c] + sum_uv x[b, y + u - p, x + v - p, c] weight[c, u, v, 0]
    o = (h - mean(h)) / sqrt(var(h) + eps) * norm_weight[c] + norm_bias[c]       mean, var over the channels

B images · Y, X rows and columns · C channels · U, V rows and columns of a filter · p padding with zeros. In
float32 (float64 stays float64), rounded to the dtype of x; an implementation may round the convolution, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.conv2d import conv2d, is_depthwise, output_shape
from fastkernels.kernels.layer_norm import layer_norm
from fastkernels.kernels.work import Tally


def _reference(
    x_BYXC: Tensor,
    weight_CUV1: Tensor,
    bias_C: Tensor,
    norm_weight_C: Tensor,
    norm_bias_C: Tensor,
    padding: int,
    eps: float,
) -> Tensor:
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    h_BYXC = conv2d(x_BYXC.to(dtype), weight_CUV1, bias_C, 1, padding, len(weight_CUV1), impl="reference")
    return layer_norm(h_BYXC, norm_weight_C, norm_bias_C, eps, impl="reference").to(x_BYXC.dtype)


def _parts(
    x_BYXC: Tensor,
    weight_CUV1: Tensor,
    bias_C: Tensor,
    norm_weight_C: Tensor,
    norm_bias_C: Tensor,
    padding: int,
    eps: float,
) -> Tensor:
    """Two kernels, each the choice for this device; the convolution is rounded between them."""
    h_BYXC = conv2d(x_BYXC, weight_CUV1, bias_C, 1, padding, len(weight_CUV1))
    return layer_norm(h_BYXC, norm_weight_C, norm_bias_C, eps)


def _shape(x_BYXC: Tensor, weight_CUV1: Tensor, padding: int) -> tuple[int, int, int, int]:
    return output_shape(x_BYXC, weight_CUV1, 1, padding, len(weight_CUV1))


def _work(tally: Tally, x_BYXC: Tensor, weight_CUV1: Tensor, *rest: Any) -> None:
    images, rows, columns, _ = _shape(x_BYXC, weight_CUV1, rest[3])
    tally.multiply(x_BYXC, 2 * images * rows * columns * weight_CUV1.numel())


_depthwise_norm = Kernel(
    "depthwise_norm",
    "(Tensor x, Tensor weight, Tensor bias, Tensor norm_weight, Tensor norm_bias, int padding, float eps) "
    "-> Tensor",
    _reference,
    fake=lambda x, weight, bias, norm_weight, norm_bias, padding, eps: x.new_empty(
        _shape(x, weight, padding)
    ),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _parts, devices=("cpu", "cuda")),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
    work=_work,
)


def depthwise_norm(
    x_BYXC: Tensor,
    weight_CUV1: Tensor,
    bias_C: Tensor,
    norm_weight_C: Tensor,
    norm_bias_C: Tensor,
    padding: int,
    eps: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, Y', X', C], contiguous, in the dtype of x: Y' = Y + 2 padding - U + 1. All tensors have one dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError unless each channel has one filter.
    """
    if not is_depthwise(weight_CUV1, x_BYXC.shape[-1]):
        raise ValueError(
            f"filters of {list(weight_CUV1.shape)} are not one for each of {x_BYXC.shape[-1]} channels"
        )
    return _depthwise_norm(x_BYXC, weight_CUV1, bias_C, norm_weight_C, norm_bias_C, padding, eps, impl=impl)
