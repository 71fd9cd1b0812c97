"""Global response normalisation: every channel of a feature map scaled by how loud it is in its image.

    g[b, c] = sqrt(sum_yx x[b, y, x, c]^2)                      over space
    n[b, c] = g[b, c] / (mean_c g[b, c] + 1e-6)                 over channels
    y = weight[c] (x n) + bias[c] + x

B images, Y, X rows and columns, C channels, channels last. Computed in at least float32, rounded once to the
dtype of x.
Mirrors transformers.models.convnextv2.modeling_convnextv2.ConvNextV2GRN.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class ConvNextV2GRN(nn.Module):
    eps = 1e-6

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(dim), requires_grad=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, C]"""
        return kernels.response_norm(hidden_states, self.weight, self.bias, self.eps)
