"""The mean of every channel over a feature map or over tokens, channels last.

    o[b, c] = 1/N sum_n x[b, n, c]

B images · N places (rows and columns of a map, or tokens) · C channels. Summed in float32 (float64 stays
float64), rounded once to the dtype of x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _reference(x_BNC: Tensor) -> Tensor:
    return x_BNC.to(torch.promote_types(x_BNC.dtype, torch.float32)).mean(1).to(x_BNC.dtype)


def _torch(x_BNC: Tensor) -> Tensor:
    return x_BNC.mean(1)  # 16-bit elements are summed in float32


_mean_pool = Kernel(
    "mean_pool",
    "(Tensor x) -> Tensor",
    _reference,
    fake=lambda x_BNC: x_BNC.new_empty(x_BNC.shape[0], x_BNC.shape[2]),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda x_BNC: x_BNC.shape[0],
)


def mean_pool(x_BNC: Tensor, *, impl: str | None = None) -> Tensor:
    """[B, ..., C] -> [B, C], contiguous, in the dtype of x.

    Raises KernelError when `impl` cannot serve the call, ValueError where there is nothing to take a mean of.
    """
    if x_BNC.dim() < 3:
        raise ValueError(f"x must be [B, ..., C] with places between, not {list(x_BNC.shape)}")
    if not x_BNC.shape[1:-1].numel():
        raise ValueError(f"x of {list(x_BNC.shape)} has no place to take a mean of")
    return _mean_pool(x_BNC.flatten(1, -2), impl=impl)
