"""Tokens of images: a projection of each patch.

    default     y[t] = x[t] W^T + b + resize(table)[t]
    prefixed    y = [class | registers | x W^T + b] of each image
    learnt      y[t] = x[t] W^T + b + table[t]                     of images of the table's size
    tubelet     y[t] = x[t] W^T + b                    of a patch over several frames of a video
    packed      y[t] = x[t] W^T                        of such patches that are cut already
    placed      y[t] = x[t] W^T + b + sample(table, p[t])       of such patches at places p of their frame

T patches of B packed images, or of images or videos of one size; F frames, Y, X rows and columns, C channels;
P values of a patch (frame, row, column, channel), D hidden, N tokens of an image; W [D, P], table [M, D] of a
square grid, row by row, resampled to each image's grid (L1/image_ops) in at least float32. Patches lie frame
by frame and row by row. Rounded to the dtype of x after the product, after resampling and after the sum.
Placed: the table at places p (L1/image_ops, SampleGrid), rounded likewise.
Mirrors transformers.models.siglip2.modeling_siglip2.Siglip2VisionEmbeddings on patches without padding,
transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTEmbeddings,
transformers.models.siglip.modeling_siglip.SiglipVisionEmbeddings,
transformers.models.vjepa2.modeling_vjepa2.VJEPA2Embeddings,
transformers.models.qwen2_vl.modeling_qwen2_vl.PatchEmbed, and
transformers.models.qwen3_vl.modeling_qwen3_vl.Qwen3VLVisionPatchEmbed with the positions that are added to
it, these five with their channels last.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastkernels import kernels

from ..L1.image_ops import ResizeGrid, SampleGrid
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
        images, patches_BLP = pixel_values.shape[0], _patches(pixel_values, self.patch_size)
        tokens_BLD = kernels.linear(patches_BLP, self.weight.flatten(1), self.bias)
        prefix = (self.cls_token.expand(images, -1, -1), self.register_tokens.expand(images, -1, -1))
        return torch.cat((*prefix, tokens_BLD), dim=1)


class LearntPatchEmbed(nn.Module):
    def __init__(self, num_channels: int, patch_size: int, hidden_size: int, num_patches: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        # A convolution's filters [D, row, column, channel], of no patch twice.
        shape = (hidden_size, patch_size, patch_size, num_channels)
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self.position_embedding = nn.Parameter(torch.empty(num_patches, hidden_size), requires_grad=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[B, Y, X, C], with as many patches as the table has rows -> [B, N, D]"""
        patches_BNP = _patches(pixel_values, self.patch_size)
        return kernels.linear(patches_BNP, self.weight.flatten(1), self.bias) + self.position_embedding


class TubeletEmbed(nn.Module):
    def __init__(self, num_channels: int, patch_size: int, tubelet_size: int, hidden_size: int) -> None:
        super().__init__()
        self.patch_size, self.tubelet_size = patch_size, tubelet_size
        # A convolution's filters [D, frame, row, column, channel], of no patch twice.
        shape = (hidden_size, tubelet_size, patch_size, patch_size, num_channels)
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, pixel_values_videos: Tensor) -> Tensor:
        """[B, F, Y, X, C], Y and X multiples of the patch size; F a multiple of the tubelet size, or less
        than that: then the frames are repeated as often -> [B, N, D]"""
        size = self.patch_size
        if pixel_values_videos.shape[1] < self.tubelet_size:
            pixel_values_videos = pixel_values_videos.repeat(1, self.tubelet_size, 1, 1, 1)
        parts = pixel_values_videos.unflatten(3, (-1, size)).unflatten(2, (-1, size))
        parts_BFUYPXQC = parts.unflatten(1, (-1, self.tubelet_size))
        tubelets_BNP = parts_BFUYPXQC.permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(4).flatten(1, 3)
        return kernels.linear(tubelets_BNP, self.weight.flatten(1), self.bias)


class PackedPatchEmbed(nn.Module):
    def __init__(self, patch_size: int, temporal_patch_size: int, in_channels: int, embed_dim: int) -> None:
        super().__init__()
        # A convolution's filters [D, frame, row, column, channel], of no patch twice.
        shape = (embed_dim, temporal_patch_size, patch_size, patch_size, in_channels)
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, P] -> [T, D]"""
        return kernels.linear(hidden_states, self.weight.flatten(1), None)


class PlacedPatchEmbed(PackedPatchEmbed):
    def __init__(
        self,
        patch_size: int,
        temporal_patch_size: int,
        in_channels: int,
        embed_dim: int,
        num_position_embeddings: int,
    ) -> None:
        super().__init__(patch_size, temporal_patch_size, in_channels, embed_dim)
        self.side = math.isqrt(num_position_embeddings)
        self.bias = nn.Parameter(torch.empty(embed_dim), requires_grad=False)
        self.position_embedding = nn.Parameter(
            torch.empty(num_position_embeddings, embed_dim), requires_grad=False
        )
        self.sample = SampleGrid()

    def forward(self, hidden_states: Tensor, places: Tensor) -> Tensor:
        """[T, P], places [T, 2] (row, column) from 0 to 1 over a patch's frame -> [T, D]"""
        table_MND = self.position_embedding.view(self.side, self.side, -1)
        projected_TD = kernels.linear(hidden_states, self.weight.flatten(1), self.bias)
        return projected_TD + self.sample(places, table_MND)


def _patches(pixel_values: Tensor, size: int) -> Tensor:
    """[B, Y, X, C] -> [B, L, P]"""
    parts_BYPXQC = pixel_values.unflatten(2, (-1, size)).unflatten(1, (-1, size))
    return parts_BYPXQC.transpose(2, 3).flatten(3).flatten(1, 2)
