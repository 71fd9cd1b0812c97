"""Root-mean-square normalisation of a head, times a gate.

    y = x / sqrt(mean(x^2) + eps) * weight * silu(gate)        silu(z) = z / (1 + exp(-z))

T tokens, H heads, V width of a head; one weight [V] for all heads, any leading shape. Computed in at least
float32, y has the dtype of x.
Mirrors fla.modules.FusedRMSNormGated (activation swish).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class RMSNormGated(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x: Tensor, g: Tensor) -> Tensor:
        """x and g, the gate, [T, H, V] (its rows may be strided) -> [T, H, V]"""
        return kernels.gated_rms_norm(x, g, self.weight, self.eps)
