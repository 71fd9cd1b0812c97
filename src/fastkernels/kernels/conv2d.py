"""A convolution over the rows and columns of a feature map, channels last.

    o[b, y, x, c] = bias[c] + sum_uvi x[b, s y + u - p, s x + v - p, g I + i] weight[c, u, v, i]

B images · Y, X rows and columns · C input and O output channels · U, V rows and columns of a filter · G
groups of I = C / G input and O / G output channels, g the group of c · s stride · p padding with zeros.
G = C = O is a depthwise convolution. Accumulates in at least float32, rounds to the dtype of x.
"""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.full_float32 import full_float32
from fastkernels.kernels.work import Tally


def extent(length: int, window: int, stride: int, padding: int) -> int:
    """Places of a window along an axis."""
    return (length + 2 * padding - window) // stride + 1


def output_shape(
    x_BYXC: Tensor, weight_OUVI: Tensor, stride: int, padding: int, groups: int
) -> tuple[int, int, int, int]:
    batch, rows, columns, _ = x_BYXC.shape
    outputs, height, width, _ = weight_OUVI.shape
    return (batch, extent(rows, height, stride, padding), extent(columns, width, stride, padding), outputs)


def is_slice(x_BYXC: Tensor) -> bool:
    """The map is contiguous, or some neighbouring channels of one that is."""
    _, rows, columns, channels = x_BYXC.shape
    pixel = x_BYXC.stride(2)
    wanted = (rows * columns * pixel, columns * pixel, pixel, 1)
    return pixel >= channels and all(
        size == 1 or stride == want for size, stride, want in zip(x_BYXC.shape, x_BYXC.stride(), wanted)
    )


def is_depthwise(weight_OUVI: Tensor, groups: int) -> bool:
    """Every channel has one filter of its own."""
    return weight_OUVI.shape[-1] == 1 and weight_OUVI.shape[0] == groups


def _reference(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor | None, stride: int, padding: int, groups: int
) -> Tensor:
    """A sum over the places of the filter, each a shifted map times one matrix."""
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    shape = output_shape(x_BYXC, weight_OUVI, stride, padding, groups)
    padded_BYXC = F.pad(x_BYXC.to(dtype), (0, 0, padding, padding, padding, padding))
    weight_OUVI = weight_OUVI.to(dtype)
    o_BYXO = torch.zeros(shape, dtype=dtype, device=x_BYXC.device)
    for u in range(weight_OUVI.shape[1]):
        for v in range(weight_OUVI.shape[2]):
            rows = slice(u, u + stride * (shape[1] - 1) + 1, stride)
            columns = slice(v, v + stride * (shape[2] - 1) + 1, stride)
            o_BYXO = o_BYXO + _matrix(padded_BYXC[:, rows, columns], weight_OUVI[:, u, v], groups)
    if bias_O is not None:
        o_BYXO = o_BYXO + bias_O.to(dtype)
    return o_BYXO.to(x_BYXC.dtype)


def _matrix(x_BYXC: Tensor, weight_OI: Tensor, groups: int) -> Tensor:
    """[B, Y, X, O]: each pixel's groups of channels by the filters of the group."""
    if groups == 1:
        return x_BYXC @ weight_OI.T
    x_BYXG1I = x_BYXC.unflatten(-1, (groups, 1, -1))
    return (x_BYXG1I * weight_OI.unflatten(0, (groups, -1))).sum(-1).flatten(-2)


def _torch(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor | None, stride: int, padding: int, groups: int
) -> Tensor:
    """cuDNN on CUDA, oneDNN on a CPU. Channels-last maps and filters are used where they lie: a permuted view
    is what PyTorch calls channels_last."""
    x_BCYX, weight_OIUV = x_BYXC.permute(0, 3, 1, 2), weight_OUVI.permute(0, 3, 1, 2)
    with full_float32(x_BYXC):
        o_BOYX = F.conv2d(x_BCYX, weight_OIUV, bias_O, stride, padding, 1, groups)
    return o_BOYX.permute(0, 2, 3, 1).contiguous()


def _gemm_unsupported(
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor | None,
    stride: int,
    padding: int,
    groups: int,
) -> str | None:
    if weight_OUVI.shape[1:3] != (stride, stride) or (padding, groups) != (0, 1):
        return "serves square filters over all channels that read each pixel once: stride as wide, no padding"
    if not weight_OUVI.is_contiguous():
        return "needs contiguous filters"
    return checks.not_alike(x_BYXC, weight_OUVI)


def _gemm(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor | None, stride: int, padding: int, groups: int
) -> Tensor:
    """Filters that read each pixel once, channels last, are a linear layer of every patch of as many places
    (cuBLAS, oneDNN): of every pixel, where they are 1 x 1."""
    patches_BYXK = x_BYXC
    if stride > 1:
        rows, columns = (side - side % stride for side in x_BYXC.shape[1:3])
        parts_BYUXVI = x_BYXC[:, :rows, :columns].unflatten(2, (-1, stride)).unflatten(1, (-1, stride))
        patches_BYXK = parts_BYUXVI.transpose(2, 3).flatten(3)
    return F.linear(patches_BYXK, weight_OUVI.flatten(1), bias_O)


def multiplied(tally: Tally, x_BYXC: Tensor, weight_OUVI: Tensor, *how: int) -> None:
    """The products of a convolution (work.py)."""
    tally.multiply(x_BYXC, 2 * prod(output_shape(x_BYXC, weight_OUVI, *how)[:3]) * weight_OUVI.numel())


_conv2d = Kernel(
    "conv2d",
    "(Tensor x, Tensor weight, Tensor? bias, int stride, int padding, int groups) -> Tensor",
    _reference,
    fake=lambda x_BYXC, weight_OUVI, bias_O, *how: x_BYXC.new_empty(output_shape(x_BYXC, weight_OUVI, *how)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("gemm", _gemm, devices=("cpu", "cuda"), unsupported=_gemm_unsupported),
        # One function, named by who computes: PyTorch hands CUDA tensors to cuDNN, others to oneDNN.
        Implementation("cudnn", _torch),
        Implementation("torch", _torch, devices=("cpu",)),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
    work=lambda tally, x, weight, bias, *how: multiplied(tally, x, weight, *how),
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
    require_fit(x_BYXC, weight_OUVI, groups)
    return _conv2d(x_BYXC, weight_OUVI, bias_O, stride, padding, groups, impl=impl)


def require_fit(x_BYXC: Tensor, weight_OUVI: Tensor, groups: int) -> None:
    """ValueError where the filters do not fit the channels."""
    channels, outputs = weight_OUVI.shape[-1] * groups, weight_OUVI.shape[0]
    if x_BYXC.shape[-1] != channels or outputs % groups:
        raise ValueError(
            f"{outputs} filters of {weight_OUVI.shape[-1]} channels in {groups} groups do not fit "
            f"{x_BYXC.shape[-1]} channels"
        )
