"""The gradient of rms_norm by its input, alone or added to another.

    n = x r,  r = 1 / sqrt(mean(x^2) + eps)
    dx = r (w dy - n mean(w dy n)) + residual

T tokens · D hidden. All of it in float32 (float64 stays float64), rounded once to the dtype of dy. The
residual is the gradient of what the norm's input was also used for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(
    dy_TD: Tensor, x_TD: Tensor, weight_D: Tensor, eps: float, residual_TD: Tensor | None
) -> Tensor:
    dtype = torch.promote_types(dy_TD.dtype, torch.float32)
    x, slope_TD = x_TD.to(dtype), dy_TD.to(dtype) * weight_D.to(dtype)
    root_T1 = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normal_TD = x * root_T1
    dx_TD = root_T1 * (slope_TD - normal_TD * (slope_TD * normal_TD).mean(-1, keepdim=True))
    return (dx_TD if residual_TD is None else dx_TD + residual_TD.to(dtype)).to(dy_TD.dtype).contiguous()


def _torch(dy_TD: Tensor, x_TD: Tensor, weight_D: Tensor, eps: float, residual_TD: Tensor | None) -> Tensor:
    """In fewer passes over memory: dx = w dy r - x c, where c is a number of each row."""
    dtype = torch.promote_types(dy_TD.dtype, torch.float32)
    x, slope_TD = x_TD.to(dtype), dy_TD * weight_D.to(dtype)
    root_T1 = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    product_T1 = torch.linalg.vecdot(slope_TD, x)[..., None].mul_(root_T1.pow(3)).div_(x.shape[-1])
    dx_TD = slope_TD.mul_(root_T1).addcmul_(x, product_T1, value=-1)
    return (dx_TD if residual_TD is None else dx_TD.add_(residual_TD)).to(dy_TD.dtype).contiguous()


_rms_norm_grad = Kernel(
    "rms_norm_grad",
    "(Tensor grad, Tensor x, Tensor weight, float eps, Tensor? residual) -> Tensor",
    _reference,
    fake=lambda dy_TD, *_: dy_TD.new_empty(dy_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda dy_TD, *_: dy_TD.numel() // dy_TD.shape[-1],
    adds_rows=True,
)


def rms_norm_grad(
    dy_TD: Tensor,
    x_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    residual_TD: Tensor | None = None,
    *,
    impl: str | None = None,
) -> Tensor:
    """dx, contiguous; any number of dimensions before the last, all tensors one dtype. x may be strided.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _rms_norm_grad(dy_TD, x_TD, weight_D, eps, residual_TD, impl=impl)
