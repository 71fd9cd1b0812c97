"""Layer normalisation, alone or after a residual add.

    s = scale * x + residual                                      (add_layer_norm; rounded to the dtype of x)
    y = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias        var(s) = mean((s - mean(s))^2)

T tokens · D hidden. All of it in float32 (float64 stays float64), rounded once to the dtype of x.
`add_layer_norm` returns the sum that it normalises; scale [D] is 1 where none is given. `sum_layer_norm`
returns the norm alone, has no scale, and need not round the sum.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.providers import PROVIDERS
from fastkernels.kernels.scaled_add import scaled_sum


def _reference_layer_norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    dtype = torch.promote_types(x_TD.dtype, torch.float32)
    x = x_TD.to(dtype)
    centred = x - x.mean(-1, keepdim=True)
    scale_T1 = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (centred * scale_T1 * weight_D.to(dtype) + bias_D.to(dtype)).to(x_TD.dtype)


def _reference_add_layer_norm(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    scale_D: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    sum_TD = x_TD + residual_TD if scale_D is None else scaled_sum(x_TD, scale_D, residual_TD)
    return _reference_layer_norm(sum_TD, weight_D, bias_D, eps), sum_TD


def _torch_layer_norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x_TD, weight_D.shape, weight_D, bias_D, eps)


def _torch_add_layer_norm(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    scale_D: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    sum_TD = x_TD + residual_TD if scale_D is None else torch.addcmul(residual_TD, x_TD, scale_D)
    return F.layer_norm(sum_TD, weight_D.shape, weight_D, bias_D, eps), sum_TD


def _reference_sum_layer_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> Tensor:
    dtype = torch.promote_types(x_TD.dtype, torch.float32)
    sum_TD = x_TD.to(dtype) + residual_TD.to(dtype)
    return _reference_layer_norm(sum_TD, weight_D, bias_D, eps).to(x_TD.dtype)


def _torch_sum_layer_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> Tensor:
    return F.layer_norm(x_TD + residual_TD, weight_D.shape, weight_D, bias_D, eps)


_layer_norm = Kernel(
    "layer_norm",
    "(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
    _reference_layer_norm,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch_layer_norm, devices=("cpu", "cuda")),
        Implementation("inductor", compiled(_reference_layer_norm)),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
        Implementation("quack", f"{PROVIDERS}.quack", requires=("quack",), extra="quack"),
        Implementation("liger", f"{PROVIDERS}.liger", requires=("liger_kernel",), extra="liger"),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)

_add_layer_norm = Kernel(
    "add_layer_norm",
    "(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps, Tensor? scale=None) -> "
    "(Tensor, Tensor)",
    _reference_add_layer_norm,
    fake=lambda x_TD, *_: (x_TD.new_empty(x_TD.shape), x_TD.new_empty(x_TD.shape)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch_add_layer_norm, devices=("cpu", "cuda")),
        Implementation("inductor", compiled(_reference_add_layer_norm)),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


_sum_layer_norm = Kernel(
    "sum_layer_norm",
    "(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) -> Tensor",
    _reference_sum_layer_norm,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch_sum_layer_norm, devices=("cpu", "cuda")),
        Implementation("inductor", compiled(_reference_sum_layer_norm)),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


def layer_norm(
    x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float, *, impl: str | None = None
) -> Tensor:
    """Normalise over the last dimension, contiguous, in x's shape and dtype; any number of dimensions before.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _layer_norm(x_TD, weight_D, bias_D, eps, impl=impl)


def add_layer_norm(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    scale_D: Tensor | None = None,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(layer_norm(s), s), s = scale * x + residual, both new and contiguous; x and residual of one shape and
    dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _add_layer_norm(x_TD, residual_TD, weight_D, bias_D, eps, scale_D, impl=impl)


def sum_layer_norm(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """layer_norm(x + residual), contiguous; x and residual of one shape and dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _sum_layer_norm(x_TD, residual_TD, weight_D, bias_D, eps, impl=impl)
