"""linear and linear_activation of float32 on tensor cores: three products of parts of each number (tf32x3),
which is nearly as exact as float32. A linear layer is a convolution over single pixels.

T rows · K inputs · N outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import conv2d_activation_triton as convolution

ONE_PIXEL = (1, 0, 1)  # stride, padding, groups
SMALLEST = 1 << 17  # elements of a weight: of smaller ones cuBLAS was as fast, or faster


def unsupported(
    kernel: str, x: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: str = "none"
) -> str | None:
    if x.dtype != torch.float32:
        return f"serves float32, not {x.dtype}"
    if weight_NK.numel() <= SMALLEST:
        return f"serves weights of more than {SMALLEST} elements, not {weight_NK.numel()}"
    if not (x.is_contiguous() and weight_NK.is_contiguous()):
        return "needs contiguous tensors"
    return None


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return linear_activation(x, weight_NK, bias_N, "none")


def linear_activation(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: str) -> Tensor:
    """x [..., K]: one row of pixels."""
    outputs, inputs = weight_NK.shape
    x_11TK, weight_N11K = x.view(1, 1, x.shape[:-1].numel(), inputs), weight_NK.view(outputs, 1, 1, inputs)
    y_11TN = convolution.conv2d_activation(x_11TK, weight_N11K, bias_N, None, None, *ONE_PIXEL, name)
    return y_11TN.view(*x.shape[:-1], outputs)
