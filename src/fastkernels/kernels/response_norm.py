"""Global response normalisation of feature maps, channels last, behind an activation or not.

    h = act(x)                                      gelu(x) = x/2 (1 + erf(x / sqrt 2)), none(x) = x
    g[b, c] = sqrt(sum_yx h[b, y, x, c]^2)          over space
    n[b, c] = g[b, c] / (mean_c g[b, c] + eps)      over channels
    o = weight[c] (h n) + bias[c] + h

B images · Y, X rows and columns · C channels. All of it in float32 (float64 stays float64), rounded once to
the dtype of x.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.activation import ACTIVATIONS
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

Activation = Literal["gelu", "none"]
_ACTIVATIONS = {"gelu": ACTIVATIONS["gelu"], "none": lambda x: x}


def _reference(x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, eps: float, activation: str) -> Tensor:
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    h_BYXC = _ACTIVATIONS[activation](x_BYXC.to(dtype))
    g_B11C = h_BYXC.square().sum((1, 2), keepdim=True).sqrt()
    n_B11C = g_B11C / (g_B11C.mean(-1, keepdim=True) + eps)
    return (weight_C.to(dtype) * (h_BYXC * n_B11C) + bias_C.to(dtype) + h_BYXC).to(x_BYXC.dtype)


def _torch(x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, eps: float, activation: str) -> Tensor:
    """The activation is rounded to the dtype of x."""
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    h_BYXC = F.gelu(x_BYXC) if activation == "gelu" else x_BYXC
    g_B11C = torch.linalg.vector_norm(h_BYXC, dim=(1, 2), keepdim=True, dtype=dtype)
    n_B11C = g_B11C / (g_B11C.mean(-1, keepdim=True) + eps)
    return torch.addcmul(bias_C.to(dtype), h_BYXC.to(dtype), 1 + weight_C.to(dtype) * n_B11C).to(x_BYXC.dtype)


_response_norm = Kernel(
    "response_norm",
    "(Tensor x, Tensor weight, Tensor bias, float eps, str activation) -> Tensor",
    _reference,
    fake=lambda x_BYXC, *_: x_BYXC.new_empty(x_BYXC.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
        Implementation("inductor", compiled(_reference)),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
)


def response_norm(
    x_BYXC: Tensor,
    weight_C: Tensor,
    bias_C: Tensor,
    eps: float,
    activation: Activation = "none",
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, Y, X, C], contiguous, in the dtype of x; all tensors have one dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"Unknown activation '{activation}'; there are {', '.join(_ACTIVATIONS)}")
    return _response_norm(x_BYXC, weight_C, bias_C, eps, activation, impl=impl)
