"""Layer scale: a factor for each feature of a branch, on its way into the residual stream.

    y = residual + lambda1 * x

T tokens, D hidden. Computed in at least float32, rounded once to the dtype of x.
Mirrors transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTLayerScale and the sum that follows it
(timm: gamma_1 and gamma_2 of eva.EvaBlock).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class LayerScale(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.lambda1 = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, hidden_state: Tensor, residual: Tensor) -> Tensor:
        """[..., D], [..., D] -> [..., D]"""
        return kernels.scaled_add(hidden_state, self.lambda1, residual)
