"""A convolution along time.

    y[b, n, t] = sum_ck x[b, c, t s + k - p] weight[n, c, k] + bias[n]        x is zero outside its frames

B clips · C channels in · N channels out · F frames · K taps · s stride · p padding at both ends. Accumulates
in at least float32, rounds to the dtype of x.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import pad

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.full_float32 import full_float32
from fastkernels.kernels.work import Tally


def num_frames(frames: int, taps: int, stride: int, padding: int) -> int:
    """Frames that come out."""
    return (frames + 2 * padding - taps) // stride + 1


def _fake(x_BCF: Tensor, weight_NCK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    frames = num_frames(x_BCF.shape[-1], weight_NCK.shape[-1], stride, padding)
    return x_BCF.new_empty((x_BCF.shape[0], weight_NCK.shape[0], frames))


def _reference(x_BCF: Tensor, weight_NCK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    """Every output frame is a product over its taps."""
    taps_BCFK = pad(x_BCF, (padding, padding)).unfold(-1, weight_NCK.shape[-1], stride)
    y_BNF = torch.einsum("bcfk,nck->bnf", taps_BCFK, weight_NCK)
    return (y_BNF if bias_N is None else y_BNF + bias_N[:, None]).contiguous()


def _torch(x_BCF: Tensor, weight_NCK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    """cuDNN on CUDA, oneDNN on a CPU; the bias is added before rounding."""
    with full_float32(x_BCF):
        return F.conv1d(x_BCF, weight_NCK, bias_N, stride, padding).contiguous()


def _work(
    tally: Tally, x_BCF: Tensor, weight_NCK: Tensor, bias_N: Tensor | None, stride: int, padding: int
) -> None:
    frames = num_frames(x_BCF.shape[-1], weight_NCK.shape[-1], stride, padding)
    tally.multiply(x_BCF, 2 * x_BCF.shape[0] * frames * weight_NCK.numel())


_conv1d = Kernel(
    "conv1d",
    "(Tensor x, Tensor weight, Tensor? bias, SymInt stride, SymInt padding) -> Tensor",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        # One function, named by who computes.
        Implementation("cudnn", _torch, devices=("cuda",)),
        Implementation("torch", _torch, devices=("cpu",)),
    ),
    rows=lambda x_BCF, *_: x_BCF.shape[0] * x_BCF.shape[-1],
    work=_work,
)


def conv1d(
    x_BCF: Tensor,
    weight_NCK: Tensor,
    bias_N: Tensor | None,
    stride: int,
    padding: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, N, (F + 2 padding - K) // stride + 1], contiguous, in the one dtype of all tensors.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _conv1d(x_BCF, weight_NCK, bias_N, stride, padding, impl=impl)
