"""A branch times a factor for each feature, added to the residual stream: layer scale.

    y = residual + scale * x

T tokens · D hidden. In float32 (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def scaled_sum(x_TD: Tensor, scale_D: Tensor, residual_TD: Tensor) -> Tensor:
    """The reference."""
    dtype = torch.promote_types(x_TD.dtype, torch.float32)
    return (residual_TD.to(dtype) + scale_D.to(dtype) * x_TD.to(dtype)).to(x_TD.dtype)


def _torch(x_TD: Tensor, scale_D: Tensor, residual_TD: Tensor) -> Tensor:
    return torch.addcmul(residual_TD, x_TD, scale_D).contiguous()


_scaled_add = Kernel(
    "scaled_add",
    "(Tensor x, Tensor scale, Tensor residual) -> Tensor",
    scaled_sum,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
)


def scaled_add(x_TD: Tensor, scale_D: Tensor, residual_TD: Tensor, *, impl: str | None = None) -> Tensor:
    """residual + scale * x, contiguous, in the dtype of x; any number of dimensions before the last. x and
    the residual share shape and dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _scaled_add(x_TD, scale_D, residual_TD, impl=impl)
