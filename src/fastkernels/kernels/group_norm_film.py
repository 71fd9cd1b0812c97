"""Group normalisation of sequences, channels first, Mish, and what a conditioned residual block does then.

    n = (x - mean_g) / sqrt(var_g + eps) * weight[c] + bias[c]
    y[b, c, t] = mish(n) * scale[b, c] + shift[b, c] + residual[b, c, t]    mish(n) = n tanh(log(1 + exp(n)))

B sequences · C channels · T frames · G groups of C / G neighbouring channels. mean_g and var_g are those of
all frames of the channels of a group in one sequence; var is mean((x - mean)^2). The scale is no gain beside
1. All of it in float32 (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.activation import mish
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(
    x_BCT: Tensor,
    weight_C: Tensor,
    bias_C: Tensor,
    scale_BC: Tensor | None,
    shift_BC: Tensor | None,
    residual_BCT: Tensor | None,
    groups: int,
    eps: float,
) -> Tensor:
    dtype = torch.promote_types(x_BCT.dtype, torch.float32)
    x_BGM = x_BCT.to(dtype).contiguous().view(x_BCT.shape[0], groups, -1)
    centred = x_BGM - x_BGM.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    n_BCT = normed.view(x_BCT.shape) * weight_C.to(dtype)[:, None] + bias_C.to(dtype)[:, None]
    return _conditioned(mish(n_BCT), scale_BC, shift_BC, residual_BCT).to(x_BCT.dtype)


def _torch(
    x_BCT: Tensor,
    weight_C: Tensor,
    bias_C: Tensor,
    scale_BC: Tensor | None,
    shift_BC: Tensor | None,
    residual_BCT: Tensor | None,
    groups: int,
    eps: float,
) -> Tensor:
    dtype = torch.promote_types(x_BCT.dtype, torch.float32)
    n_BCT = F.group_norm(x_BCT.to(dtype), groups, weight_C.to(dtype), bias_C.to(dtype), eps)
    y_BCT = _conditioned(F.mish(n_BCT, inplace=True), scale_BC, shift_BC, residual_BCT)
    return y_BCT.to(x_BCT.dtype).contiguous()


def _conditioned(
    y_BCT: Tensor, scale_BC: Tensor | None, shift_BC: Tensor | None, residual_BCT: Tensor | None
) -> Tensor:
    if scale_BC is not None and shift_BC is not None:
        y_BCT = y_BCT * scale_BC.to(y_BCT.dtype)[..., None] + shift_BC.to(y_BCT.dtype)[..., None]
    return y_BCT if residual_BCT is None else y_BCT + residual_BCT.to(y_BCT.dtype)


_group_norm_film = Kernel(
    "group_norm_film",
    "(Tensor x, Tensor weight, Tensor bias, Tensor? scale, Tensor? shift, Tensor? residual, int groups, "
    "float eps) -> Tensor",
    _reference,
    fake=lambda x_BCT, *_: x_BCT.new_empty(x_BCT.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda x_BCT, *_: x_BCT.numel() // max(1, x_BCT.shape[1]),
)


def group_norm_film(
    x_BCT: Tensor,
    weight_C: Tensor,
    bias_C: Tensor,
    scale_BC: Tensor | None,
    shift_BC: Tensor | None,
    residual_BCT: Tensor | None,
    groups: int,
    eps: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, C, T], contiguous, in the dtype of x; all tensors have one dtype, scale and shift come together.

    Raises KernelError when `impl` cannot serve the call, ValueError where groups do not divide the channels,
    and where what comes beside x does not fit it.
    """
    batch, channels, _ = x_BCT.shape
    if channels % groups:
        raise ValueError(f"{channels} channels are no {groups} groups of one size")
    if (scale_BC is None) != (shift_BC is None):
        raise ValueError("scale and shift come together")
    expected = ((scale_BC, (batch, channels)), (shift_BC, (batch, channels)), (residual_BCT, x_BCT.shape))
    for name, (tensor, shape) in zip(("scale", "shift", "residual"), expected):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} is {list(tensor.shape)}, it must be {list(shape)}")
    return _group_norm_film(x_BCT, weight_C, bias_C, scale_BC, shift_BC, residual_BCT, groups, eps, impl=impl)
