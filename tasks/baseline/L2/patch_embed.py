"""Tokens of images: a projection of each patch.

    default     y[t] = x[t] W^T + b + resize(table)[t]
    prefixed    y = [class | registers | x W^T + b] of each image

T patches of B packed images, or images of one size, Y, X rows and columns, C channels; P values of a patch
(row, column, channel), D hidden, N tokens of an image; W [D, P], table [M, D] of a square grid, row by row,
resampled to each image's grid (L1/image_ops) in at least float32. Patches lie row by row. Rounded to the
dtype of x after the product, after resampling and after the sum.
Mirrors transformers.models.siglip2.modeling_siglip2.Siglip2VisionEmbeddings on patches without padding, and
transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTEmbeddings on images with their channels last.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastkernels import kernels

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


class PrefixedPatchEmbed(nn.Module):
    def __init__(
        self, num_channels: int, patch_size: int, hidden_size: int, num_register_tokens: int
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        # A convolution's filters [D, row, column, channel], of no patch twice.
        self.weight = nn.Parameter(
            torch.empty(hidden_size, patch_size, patch_size, num_channels), requires_grad=False
        )
        self.bias = nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self.cls_token = nn.Parameter(torch.empty(1, 1, hidden_size), requires_grad=False)
        self.register_tokens = nn.Parameter(
            torch.empty(1, num_register_tokens, hidden_size), requires_grad=False
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[B, Y, X, C], Y and X multiples of the patch size -> [B, N, D]"""
        images, size = pixel_values.shape[0], self.patch_size
        parts_BYPXQC = pixel_values.unflatten(2, (-1, size)).unflatten(1, (-1, size))
        patches_BLP = parts_BYPXQC.transpose(2, 3).flatten(3).flatten(1, 2)
        tokens_BLD = kernels.linear(patches_BLP, self.weight.flatten(1), self.bias)
        prefix = (self.cls_token.expand(images, -1, -1), self.register_tokens.expand(images, -1, -1))
        return torch.cat((*prefix, tokens_BLD), dim=1)
