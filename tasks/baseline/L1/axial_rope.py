"""Rotary positions of the patches of an image: the table of angles, and the rotation of half-split features.

    a[p] = [2 pi c[p, 0] / t_i | 2 pi c[p, 1] / t_i]      t_i = theta^(4i / K),  i < K/4
    table = [cos 0 | sin 0] for each token before the patches, then [cos a[p] | sin a[p]]
    y[j]       = x[j] cos a[j] - x[j + K/2] sin a[j]
    y[j + K/2] = x[j + K/2] cos a[j] + x[j] sin a[j]      j < K/2

P patches with their centres c, rows and columns each from -1 to 1 over the image; R tokens before them (class
and registers), which are not turned; H heads, K head size, T tokens of all images. Angles are float64, the
table is rounded once to float32 (float64 for a float64 module), whatever the dtype of the model; the rotation
is computed in float32 and rounded once to the dtype of its input.
Mirrors transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTRopePositionEmbedding (its table is of
patches alone, and holds every angle twice) and its apply_rotary_pos_emb.
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


class ApplyAxialRope(nn.Module):
    def forward(self, q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q and k [T, H, K], cos_sin [R + P, K], positions int64 [T], each token's row -> (q, k), rotated"""
        return kernels.rope(positions, q, k, cos_sin)
