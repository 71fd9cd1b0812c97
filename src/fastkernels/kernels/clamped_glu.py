"""Gated linear unit of neighbouring features, clamped: a gate and what it multiplies lie side by side.

    g = min(x[t, 2f], limit),  u = max(-limit, min(x[t, 2f + 1], limit))
    y[t, f] = (u + 1) g sigmoid(alpha g)

T tokens · F hidden of the MLP. The gate is not clamped from below. Everything in float32 (float64 stays
float64), rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.providers import PROVIDERS


def _reference(x_T2F: Tensor, alpha: float, limit: float) -> Tensor:
    wide_TF2 = x_T2F.to(torch.promote_types(x_T2F.dtype, torch.float32)).unflatten(-1, (-1, 2))
    gate_TF, up_TF = wide_TF2[..., 0].clamp(max=limit), wide_TF2[..., 1].clamp(-limit, limit)
    return ((up_TF + 1) * (gate_TF * torch.sigmoid(alpha * gate_TF))).to(x_T2F.dtype)


_clamped_glu = Kernel(
    "clamped_glu",
    "(Tensor x, float alpha, float limit) -> Tensor",
    _reference,
    fake=lambda x_T2F, *_: x_T2F.new_empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("vllm", f"{PROVIDERS}.vllm_rows", requires=("vllm",), extra="vllm"),
    ),
    rows=lambda x_T2F, *_: x_T2F.numel() // x_T2F.shape[-1],
)


def clamped_glu(x_T2F: Tensor, alpha: float, limit: float, *, impl: str | None = None) -> Tensor:
    """[..., 2F] -> [..., F], contiguous, in x's dtype; x's last dimension is contiguous and even.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _clamped_glu(x_T2F, alpha, limit, impl=impl)
