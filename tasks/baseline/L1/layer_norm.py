"""Layer normalisation over the last dimension.

    n = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)
    y = n * weight + bias
    y = n * (1 + scale[b]) + shift[b]                  modulated: by the conditioning of request b

T tokens, D hidden; any leading shape. B requests of L tokens each. Computed in at least float32; y has the
dtype of x.
Mirrors torch.nn.LayerNorm, and what diffusers.models.normalization.AdaLayerNormZero does with a LayerNorm
without weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class LayerNorm(nn.Module):
    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(normalized_shape), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(normalized_shape), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        return kernels.layer_norm(input, self.weight, self.bias, self.eps)


class ModulatedLayerNorm(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """x [B, L, D], scale and shift [B, D] -> [B, L, D]"""
        return kernels.modulated_layer_norm(x, scale, shift, self.eps)
