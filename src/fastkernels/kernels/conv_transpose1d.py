"""A transposed convolution along time: each input frame adds its filters to K output frames.

    y[b, n, t] = sum_ck x[b, c, f] weight[c, n, k] + bias[n]        over f, k with f s + k - p = t

B clips · C channels in · N channels out · F frames · K taps · s stride · p frames left out at both ends.
Accumulates in at least float32, rounds to the dtype of x.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.full_float32 import full_float32
from fastkernels.kernels.work import Tally


def num_frames(frames: int, taps: int, stride: int, padding: int) -> int:
    """Frames that come out."""
    return (frames - 1) * stride + taps - 2 * padding


def _fake(x_BCF: Tensor, weight_CNK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    frames = num_frames(x_BCF.shape[-1], weight_CNK.shape[-1], stride, padding)
    return x_BCF.new_empty((x_BCF.shape[0], weight_CNK.shape[1], frames))


def _reference(x_BCF: Tensor, weight_CNK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    """One tap after the other is added to every s-th frame."""
    dtype = torch.promote_types(x_BCF.dtype, torch.float32)
    (clips, _, frames), (_, outputs, taps) = x_BCF.shape, weight_CNK.shape
    whole = num_frames(frames, taps, stride, 0)
    y_BNF = torch.zeros(clips, outputs, whole, dtype=dtype, device=x_BCF.device)
    for k in range(taps):
        part_BNF = torch.einsum("bcf,cn->bnf", x_BCF.to(dtype), weight_CNK[..., k].to(dtype))
        y_BNF[..., k : k + (frames - 1) * stride + 1 : stride] += part_BNF
    y_BNF = y_BNF[..., padding : whole - padding]
    if bias_N is not None:
        y_BNF = y_BNF + bias_N.to(dtype)[:, None]
    return y_BNF.to(x_BCF.dtype).contiguous()


def _torch(x_BCF: Tensor, weight_CNK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    """cuDNN on CUDA, oneDNN on a CPU."""
    with full_float32(x_BCF):
        return F.conv_transpose1d(x_BCF, weight_CNK, bias_N, stride, padding).contiguous()


def _work(
    tally: Tally, x_BCF: Tensor, weight_CNK: Tensor, bias_N: Tensor | None, stride: int, padding: int
) -> None:
    """Products that end outside are counted, too: taps at the ends alone make them."""
    tally.multiply(x_BCF, 2 * x_BCF.shape[0] * x_BCF.shape[-1] * weight_CNK.numel())


_conv_transpose1d = Kernel(
    "conv_transpose1d",
    "(Tensor x, Tensor weight, Tensor? bias, SymInt stride, SymInt padding) -> Tensor",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("triton", "fastkernels.kernels.conv1d_triton"),
        # One function, named by who computes.
        Implementation("cudnn", _torch, devices=("cuda",)),
        Implementation("torch", _torch, devices=("cpu",)),
    ),
    rows=lambda x_BCF, *_: x_BCF.shape[0] * x_BCF.shape[-1],
    work=_work,
)


def conv_transpose1d(
    x_BCF: Tensor,
    weight_CNK: Tensor,
    bias_N: Tensor | None,
    stride: int,
    padding: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, N, (F - 1) stride + K - 2 padding], contiguous, in the one dtype of all tensors.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _conv_transpose1d(x_BCF, weight_CNK, bias_N, stride, padding, impl=impl)
