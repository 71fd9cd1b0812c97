"""A convolution over the rows and columns of a feature map, channels last.

    o[b, y, x, c] = bias[c] + sum_uvi x[b, s y + u - p, s x + v - p, g I + i] weight[c, u, v, i]

B images · Y, X rows and columns · C input and O output channels · U, V rows and columns of a filter · G
groups of I = C / G input and O / G output channels, g the group of c · s stride · p padding with zeros.
G = C = O is a depthwise convolution. Accumulates in at least float32, rounds to the dtype of x.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.conv2d import reference
from fastkernels.kernels.conv2d.shapes import output_shape

_conv2d = Kernel(
    "conv2d",
    "(Tensor x, Tensor weight, Tensor? bias, int stride, int padding, int groups) -> Tensor",
    reference.conv2d,
    fake=lambda x_BYXC, weight_OUVI, bias_O, *how: x_BYXC.new_empty(output_shape(x_BYXC, weight_OUVI, *how)),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("gemm", f"{__name__}.gemm", devices=("cpu", "cuda")),
        # One function, named by who computes: PyTorch hands CUDA tensors to cuDNN, others to oneDNN.
        Implementation("cudnn", f"{__name__}.torch"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu",)),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
)


def conv2d(
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor | None,
    stride: int,
    padding: int,
    groups: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, Y', X', O], contiguous, in the dtype of x: Y' = (Y + 2 padding - U) // stride + 1.

    All tensors have one dtype. Raises KernelError when `impl` cannot serve the call, ValueError where the
    filters do not fit the channels.
    """
    channels, outputs = weight_OUVI.shape[-1] * groups, weight_OUVI.shape[0]
    if x_BYXC.shape[-1] != channels or outputs % groups:
        raise ValueError(
            f"{outputs} filters of {weight_OUVI.shape[-1]} channels in {groups} groups do not fit "
            f"{x_BYXC.shape[-1]} channels"
        )
    return _conv2d(x_BYXC, weight_OUVI, bias_O, stride, padding, groups, impl=impl)
