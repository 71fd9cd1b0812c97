"""Group normalisation of feature maps, channels last, and the activation behind it.

    n = (x - mean_g) / sqrt(var_g + eps) * weight[c] + bias[c]        y = act(n)
    silu(n) = n / (1 + exp(-n))          none(n) = n

B images · Y, X rows and columns · C channels · G groups of S = C / G neighbouring channels. mean_g and var_g
are those of all Y X S values of the group of c in one image; var is mean((x - mean)^2). All of it in float32
(float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

Activation = Literal["silu", "none"]


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


ACTIVATIONS = {"silu": _silu, "none": lambda x: x}


def _reference(
    x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, groups: int, eps: float, activation: str
) -> Tensor:
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    x_BGYXS = x_BYXC.to(dtype).unflatten(-1, (groups, -1)).permute(0, 3, 1, 2, 4)
    # One group behind the other: PyTorch adds up a contiguous run in pairs, and strided values one by one.
    x_BGM = x_BGYXS.flatten(2)
    centred = x_BGM - x_BGM.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    n_BYXC = normed.view(x_BGYXS.shape).permute(0, 2, 3, 1, 4).flatten(-2)
    n_BYXC = n_BYXC * weight_C.to(dtype) + bias_C.to(dtype)
    return ACTIVATIONS[activation](n_BYXC).to(x_BYXC.dtype).contiguous()


def _torch(
    x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, groups: int, eps: float, activation: str
) -> Tensor:
    """In float32 and rounded once.

    Given maps of bfloat16, PyTorch 2.11 on CUDA is off by 0.013, where one rounding costs 0.0017: as if a
    group's mean and scale were kept in 16 bits.

    Maps are copied to channels second: given channels-last ones, PyTorch 2.13 on the CPU loses the variance
    of a large mean (4096.5 +- 0.5 comes out as +- 500).
    """
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    x_BCYX = x_BYXC.to(dtype).permute(0, 3, 1, 2).contiguous()
    n_BCYX = F.group_norm(x_BCYX, groups, weight_C.to(dtype), bias_C.to(dtype), eps)
    if activation == "silu":
        n_BCYX = F.silu(n_BCYX, inplace=True)
    return n_BCYX.to(x_BYXC.dtype).permute(0, 2, 3, 1).contiguous()


_group_norm = Kernel(
    "group_norm",
    "(Tensor x, Tensor weight, Tensor bias, int groups, float eps, str activation) -> Tensor",
    _reference,
    fake=lambda x_BYXC, *_: x_BYXC.new_empty(x_BYXC.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
        Implementation("inductor", compiled(_reference)),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
)


def group_norm(
    x_BYXC: Tensor,
    weight_C: Tensor,
    bias_C: Tensor,
    groups: int,
    eps: float,
    activation: Activation = "none",
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, Y, X, C], contiguous, in the dtype of x; all tensors have one dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError where groups do not divide the channels,
    and for another activation.
    """
    if x_BYXC.shape[-1] % groups:
        raise ValueError(f"{x_BYXC.shape[-1]} channels are no {groups} groups of one size")
    if activation not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{activation}'; there are {', '.join(ACTIVATIONS)}")
    return _group_norm(x_BYXC, weight_C, bias_C, groups, eps, activation, impl=impl)
