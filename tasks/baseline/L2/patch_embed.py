"""Tokens of packed images: a projection of each patch plus a position from a resampled table.

    y[t] = x[t] W^T + b + resize(table)[t]

T patches of B images, P values of a patch (row, column, channel), D hidden; W [D, P], table [N, D] of a
square grid, row by row. Positions are resampled to each image's grid (L1/image_ops) in at least float32.
Rounded to the dtype of x after the product, after resampling and after the sum.
Mirrors transformers.models.siglip2.modeling_siglip2.Siglip2VisionEmbeddings on patches without padding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..L1.image_ops import ResizeGrid
from ..L1.linear import Linear


class PatchEmbed(nn.Module):
    def __init__(self, patch_values: int, hidden_size: int, num_patches: int) -> None:
        super().__init__()
        self.side = math.isqrt(num_patches)
        self.projection = Linear(patch_values, hidden_size, bias=True)
        self.position_embedding = nn.Parameter(torch.empty(num_patches, hidden_size), requires_grad=False)
        self.resize = ResizeGrid()

    def forward(self, pixel_values: Tensor, spatial_shapes: Tensor) -> Tensor:
        """pixel_values [T, P], spatial_shapes int64 [B, 2] (rows, columns of patches) -> [T, D]"""
        table_MND = self.position_embedding.view(self.side, self.side, -1)
        return self.projection(pixel_values) + self.resize(table_MND, spatial_shapes, pixel_values.shape[0])
