"""Root-mean-square normalisation, optionally after a residual add.

    s = x + residual                                   (only with a residual)
    y = s / sqrt(mean(s^2) + eps) * weight
    y = x / sqrt(mean(x^2) + eps)                      WeightlessRMSNorm
    y = s / sqrt(mean(s^2) + eps) * (1 + weight)       GemmaRMSNorm

T tokens, D hidden; any leading shape. The sum s has the dtype of the residual, that of x or float32, is
returned, and normalised as rounded. Mean, rsqrt and product accumulate in at least float32 and are cast to
the dtype of x before the multiply by weight; GemmaRMSNorm, whose weight is around zero, casts once, at the
end.
Mirrors vllm.model_executor.layers.layernorm.RMSNorm, WeightlessRMSNorm the same with has_weight=False, and
GemmaRMSNorm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """y, or (y, s) with a residual."""
        if residual is None:
            return kernels.rms_norm(x, self.weight, self.eps)
        return kernels.add_rms_norm(x, residual, self.weight, self.eps)


class WeightlessRMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.hidden_size, self.eps = hidden_size, eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        return kernels.rms_norm(x, None, self.eps)


class GemmaRMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """y, or (y, s) with a residual."""
        if residual is None:
            return kernels.rms_norm(x, self.weight, self.eps, True)
        return kernels.add_rms_norm(x, residual, self.weight, self.eps, True)
