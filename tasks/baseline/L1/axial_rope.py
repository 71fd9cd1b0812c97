"""Rotary positions of the patches of an image: the table of angles, and the rotation of half-split features.

    table     a[p] = [2 pi c[p, 0] / t_i | 2 pi c[p, 1] / t_i]      t_i = theta^(4i / K),  i < K/4
              [cos 0 | sin 0] for each token before the patches, then [cos a[p] | sin a[p]]
    merged    a[p] = [r[p] / t_i | c[p] / t_i]                      [cos a[p] | sin a[p]]
    y[j]       = x[j] cos a[j] - x[j + K/2] sin a[j]
    y[j + K/2] = x[j + K/2] cos a[j] + x[j] sin a[j]      j < K/2

P patches with their centres c, rows and columns each from -1 to 1 over the image; R tokens before them (class
and registers), which are not turned; H heads, K head size, T tokens of all images. Merged: packed images of
any size, each patch at its row r and column c of the image's grid; the patches of a block of m x m, which
become one token, lie together, row by row. Angles are float64, the
table is rounded once to float32 (float64 for a float64 module), whatever the dtype of the model; the rotation
is computed in float32 and rounded once to the dtype of its input.
Mirrors transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTRopePositionEmbedding (its table is of
patches alone, and holds every angle twice) and its apply_rotary_pos_emb, and for merged patches
transformers.models.qwen2_vl.modeling_qwen2_vl.Qwen2VLVisionRotaryEmbedding with the places of its positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastkernels import kernels


class AxialRopeTable(nn.Module):
    def __init__(self, head_dim: int, rope_theta: float, num_prefix_tokens: int) -> None:
        super().__init__()
        self.head_dim, self.rope_theta, self.num_prefix_tokens = head_dim, rope_theta, num_prefix_tokens
        self.dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)

    def forward(self, patch_coords: Tensor) -> Tensor:
        """patch_coords [P, 2] -> [R + P, K]"""
        exponents = torch.arange(0, self.head_dim, 4, dtype=torch.float64, device=patch_coords.device)
        turns_I = 2 * math.pi * self.rope_theta ** -(exponents / self.head_dim)
        angle_PJ = (patch_coords.double()[:, :, None] * turns_I).flatten(1)
        angle_NJ = nn.functional.pad(angle_PJ, (0, 0, self.num_prefix_tokens, 0))
        return torch.cat((angle_NJ.cos(), angle_NJ.sin()), dim=-1).to(self.dtype)


class MergedRopeTable(nn.Module):
    def __init__(self, dim: int, theta: float, spatial_merge_size: int) -> None:
        super().__init__()
        self.dim, self.theta, self.spatial_merge_size = dim, theta, spatial_merge_size
        self.dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)

    def forward(self, spatial_shapes: Tensor, cu_seqlens: Tensor, num_patches: int) -> Tensor:
        """spatial_shapes int64 [B, 2] (rows, columns of patches, multiples of m), cu_seqlens int32 [B+1] from
        0 to num_patches -> [P, K]"""
        device, merge = spatial_shapes.device, self.spatial_merge_size
        exponents = torch.arange(0, self.dim, 4, dtype=torch.float64, device=device)
        turns_I = self.theta ** -(exponents / self.dim)
        spread = {"dim": 0, "output_size": num_patches}
        lengths_B = cu_seqlens.diff()
        columns_P = torch.repeat_interleave(spatial_shapes[:, 1], lengths_B, **spread) // merge
        begins_P = torch.repeat_interleave(cu_seqlens[:-1], lengths_B, **spread)
        place_P = torch.arange(num_patches, device=device) - begins_P
        block_P, inside_P = place_P // merge**2, place_P % merge**2
        row_P = block_P // columns_P * merge + inside_P // merge
        column_P = block_P % columns_P * merge + inside_P % merge
        places_P2 = torch.stack((row_P, column_P), dim=1)
        angle_PJ = (places_P2.double()[:, :, None] * turns_I).flatten(1)
        return torch.cat((angle_PJ.cos(), angle_PJ.sin()), dim=-1).to(self.dtype)


class ApplyAxialRope(nn.Module):
    def forward(self, q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q and k [T, H, K], cos_sin [R + P, K], positions int64 [T], each token's row -> (q, k), rotated"""
        return kernels.rope(positions, q, k, cos_sin)
