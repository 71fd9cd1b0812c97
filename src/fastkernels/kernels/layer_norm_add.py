"""Layer normalisation of a branch, added to what goes past it: the residual of a post-norm block.

    y = residual + (x - mean(x)) / sqrt(var(x) + eps) * weight + bias        var(x) = mean((x - mean(x))^2)

T tokens · D hidden. All of it in float32 (float64 stays float64), rounded to the dtype of x; an
implementation may round the norm before the sum, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.layer_norm import layer_norm


def _reference(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    dtype = torch.promote_types(x_TD.dtype, torch.float32)
    normed_TD = layer_norm(x_TD.to(dtype), weight_D.to(dtype), bias_D.to(dtype), eps, impl="reference")
    return (residual_TD.to(dtype) + normed_TD).to(x_TD.dtype)


def _parts(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    """The norm that is chosen for this device, then a sum; the norm is rounded between them."""
    return layer_norm(x_TD, weight_D, bias_D, eps).add_(residual_TD)


_layer_norm_add = Kernel(
    "layer_norm_add",
    "(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) -> Tensor",
    _reference,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _parts, devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


def layer_norm_add(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """residual + layer_norm(x), contiguous; x and residual share shape and dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _layer_norm_add(x_TD, residual_TD, weight_D, bias_D, eps, impl=impl)
