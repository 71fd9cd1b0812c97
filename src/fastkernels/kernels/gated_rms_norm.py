"""Root-mean-square normalisation and a gate, which comes behind the norm or before it.

    y = x / sqrt(mean(x^2) + eps) * weight * act(gate)         act: silu(z) = z / (1 + exp(-z)), or sigmoid
    y = g / sqrt(mean(g^2) + eps) * weight,  g = x act(gate)                  with gate_first

T rows · D width, usually of a head or a group of channels; G groups. Float32 inside (float64 stays float64),
rounded once to the dtype of x.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.providers import PROVIDERS

Gate = Literal["silu", "sigmoid"]


def _reference(
    x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float, gate_first: bool, act: Gate = "silu"
) -> Tensor:
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    x, gate = x_TD.to(wide), gate_TD.to(wide)
    gate = gate * torch.sigmoid(gate) if act == "silu" else torch.sigmoid(gate)
    x, gate = (x * gate, 1) if gate_first else (x, gate)
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (normal * weight_D.to(wide) * gate).to(x_TD.dtype).contiguous()


def _torch(
    x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float, gate_first: bool, act: Gate = "silu"
) -> Tensor:
    """Two of PyTorch's operators: the norm of 16-bit tensors is rounded on its own."""
    # Rounded on its own as well, the gate made rows of equal values wrong by three roundings.
    wide = torch.promote_types(gate_TD.dtype, torch.float32)
    opened = F.silu if act == "silu" else torch.sigmoid
    gate, width = opened(gate_TD.to(wide)), x_TD.shape[-1:]
    if gate_first:
        return (F.rms_norm(x_TD * gate, width, None, eps) * weight_D).to(x_TD.dtype)
    if weight_D.ndim == 1:
        return F.rms_norm(x_TD.contiguous(), width, weight_D, eps).mul_(gate)
    return F.rms_norm(x_TD.contiguous(), width, None, eps).mul_(gate * weight_D)


_gated_rms_norm = Kernel(
    "gated_rms_norm",
    "(Tensor x, Tensor gate, Tensor weight, float eps, bool gate_first, str act='silu') -> Tensor",
    _reference,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


def gated_rms_norm(
    x_TD: Tensor,
    gate_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    gate_first: bool = False,
    act: Gate = "silu",
    *,
    impl: str | None = None,
) -> Tensor:
    """Normalise the last dimension of `x` and multiply by act(gate); any number of dimensions before it.

    weight [D], or [G, D] where x is [..., G, D]. x and gate have one shape and may be strided views with a
    contiguous last dimension; the result is contiguous, of x's shape and dtype. gate and weight have x's
    dtype. Raises KernelError when `impl` cannot serve the call.
    """
    return _gated_rms_norm(x_TD, gate_TD, weight_D, eps, gate_first, act, impl=impl)
