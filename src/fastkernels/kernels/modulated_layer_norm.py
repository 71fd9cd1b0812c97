"""Layer normalisation without weights, scaled and shifted by each request's conditioning.

    y = (x - mean(x)) / sqrt(var(x) + eps) * (1 + scale[b]) + shift[b]        var(x) = mean((x - mean(x))^2)

B requests · L tokens of each · D hidden. All of it in float32 (float64 stays float64), rounded once to the
dtype of x.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(x_BLD: Tensor, scale_BD: Tensor, shift_BD: Tensor, eps: float) -> Tensor:
    dtype = torch.promote_types(x_BLD.dtype, torch.float32)
    x = x_BLD.contiguous().to(dtype)
    centred = x - x.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    scale_B1D, shift_B1D = scale_BD.to(dtype).unsqueeze(1), shift_BD.to(dtype).unsqueeze(1)
    return (normed * (1 + scale_B1D) + shift_B1D).to(x_BLD.dtype)


def _torch_unsupported(x_BLD: Tensor, scale_BD: Tensor, shift_BD: Tensor, eps: float) -> str | None:
    if x_BLD.dtype not in (torch.float32, torch.float64):
        return "would round 16-bit rows before they are scaled"
    return None


def _torch(x_BLD: Tensor, scale_BD: Tensor, shift_BD: Tensor, eps: float) -> Tensor:
    """PyTorch's normalisation and one fused multiply-add."""
    normed = F.layer_norm(x_BLD.contiguous(), x_BLD.shape[-1:], eps=eps)
    return torch.addcmul(shift_BD.unsqueeze(1), normed, 1 + scale_BD.unsqueeze(1))


_modulated_layer_norm = Kernel(
    "modulated_layer_norm",
    "(Tensor x, Tensor scale, Tensor shift, float eps) -> Tensor",
    _reference,
    fake=lambda x_BLD, *_: x_BLD.new_empty(x_BLD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
    ),
    rows=lambda x_BLD, *_: x_BLD.shape[0] * x_BLD.shape[1],
    adds_rows=True,
)


def modulated_layer_norm(
    x_BLD: Tensor, scale_BD: Tensor, shift_BD: Tensor, eps: float, *, impl: str | None = None
) -> Tensor:
    """Contiguous [B, L, D] in the dtype of x.

    x, scale and shift have one dtype and may be strided views: scale and shift are often parts of one
    product. Raises KernelError when `impl` cannot serve the call.
    """
    return _modulated_layer_norm(x_BLD, scale_BD, shift_BD, eps, impl=impl)
