"""Root-mean-square normalisation, then a gate.

    y = x / sqrt(mean(x^2) + eps) * weight * silu(gate)        silu(z) = z / (1 + exp(-z))

T rows · D width, usually of a head. Float32 inside (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    x, gate = x_TD.to(wide), gate_TD.to(wide)
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (normal * weight_D.to(wide) * gate * torch.sigmoid(gate)).to(x_TD.dtype).contiguous()


def _torch(x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Two of PyTorch's operators: the norm of 16-bit tensors is rounded on its own."""
    # Rounded on its own as well, the gate made rows of equal values wrong by three roundings.
    gate_TD = gate_TD.to(torch.promote_types(gate_TD.dtype, torch.float32))
    return F.rms_norm(x_TD.contiguous(), weight_D.shape, weight_D, eps).mul_(F.silu(gate_TD))


_gated_rms_norm = Kernel(
    "gated_rms_norm",
    "(Tensor x, Tensor gate, Tensor weight, float eps) -> Tensor",
    _reference,
    fake=lambda x_TD, gate_TD, weight_D, eps: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


def gated_rms_norm(
    x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float, *, impl: str | None = None
) -> Tensor:
    """Normalise the last dimension of `x` and multiply by silu(gate); any number of dimensions before it.

    x and gate have one shape and may be strided views with a contiguous last dimension; the result is
    contiguous, of x's shape and dtype. gate and weight have x's dtype. Raises KernelError when `impl` cannot
    serve the call.
    """
    return _gated_rms_norm(x_TD, gate_TD, weight_D, eps, impl=impl)
