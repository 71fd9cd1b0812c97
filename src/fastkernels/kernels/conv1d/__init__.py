"""A convolution along time.

    y[b, n, t] = sum_ck x[b, c, t s + k - p] weight[n, c, k] + bias[n]        x is zero outside its frames

B clips · C channels in · N channels out · F frames · K taps · s stride · p padding at both ends. Accumulates
in at least float32, rounds to the dtype of x.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.conv1d import reference


def num_frames(frames: int, taps: int, stride: int, padding: int) -> int:
    """Frames that come out."""
    return (frames + 2 * padding - taps) // stride + 1


def _fake(x_BCF: Tensor, weight_NCK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    frames = num_frames(x_BCF.shape[-1], weight_NCK.shape[-1], stride, padding)
    return x_BCF.new_empty((x_BCF.shape[0], weight_NCK.shape[0], frames))


_conv1d = Kernel(
    "conv1d",
    "(Tensor x, Tensor weight, Tensor? bias, SymInt stride, SymInt padding) -> Tensor",
    reference.conv1d,
    fake=_fake,
    implementations=(
        # One function, named by who computes.
        Implementation("cudnn", f"{__name__}.torch", devices=("cuda",)),
        Implementation("torch", f"{__name__}.torch", devices=("cpu",)),
    ),
    rows=lambda x_BCF, *_: x_BCF.shape[0] * x_BCF.shape[-1],
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
