"""Rotary position embedding of tokens with several coordinates: the table of angles, and the rotation.

    a[s, j] = ids[s, axis] theta^(-2i / R[axis])        pair j: the i-th of its axis of R[axis] features
    pixel    a[s, j] = (2 ids[s, axis] / (G[axis] - 1) - 1) pi f[i]    f from 1 to max_freq / 2, evenly
    table[s] = [cos a[s] | sin a[s]]
    y[2j]     = x[2j] cos a[s, j] - x[2j + 1] sin a[s, j]
    y[2j + 1] = x[2j + 1] cos a[s, j] + x[2j] sin a[s, j]

B requests, S tokens of each, A axes, H heads, K = sum(R) head size. Pixel: places run from -1 to 1 over a
grid of G rows and columns, and features behind those of its axes are not turned. Angles are float64, the
table is rounded once to float32 (float64 for a float64 module); the rotation is computed in float32 and
rounded once to the dtype of its input. All requests share the table.
Mirrors diffusers.models.transformers.transformer_flux.FluxPosEmbed, rotary_embedding_torch.RotaryEmbedding
with freqs_for="pixel" (its get_axial_freqs; both tables hold every angle twice) and
diffusers.models.embeddings.apply_rotary_emb.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastkernels import kernels


class FluxPosEmbed(nn.Module):
    def __init__(self, theta: float, axes_dim: list[int]) -> None:
        super().__init__()
        self.theta, self.axes_dim = theta, list(axes_dim)
        self.dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)

    def forward(self, ids: Tensor) -> Tensor:
        """integers [S, A] -> [S, K]"""
        angles = [self._angles(ids[:, axis], dim) for axis, dim in enumerate(self.axes_dim)]
        angle_SJ = torch.cat(angles, dim=-1)
        return torch.cat((angle_SJ.cos(), angle_SJ.sin()), dim=-1).to(self.dtype)

    def _angles(self, position_S: Tensor, dim: int) -> Tensor:
        """float64 [S, R / 2]"""
        exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=position_S.device) / dim
        return position_S[:, None] * self.theta**-exponents


class PixelRotaryEmbedding(nn.Module):
    def __init__(self, dim: int, max_freq: float, head_dim: int, grid: list[int]) -> None:
        super().__init__()
        self.dim, self.max_freq, self.head_dim, self.grid = dim, max_freq, head_dim, list(grid)
        self.dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)

    def forward(self, ids: Tensor) -> Tensor:
        """integers [S, A], dim features of each axis -> [S, K]"""
        turns_R = math.pi * torch.linspace(
            1, self.max_freq / 2, self.dim // 2, dtype=torch.float64, device=ids.device
        )
        places = [2 * ids[:, axis].double() / max(1, side - 1) - 1 for axis, side in enumerate(self.grid)]
        angle_SJ = torch.cat([place_S[:, None] * turns_R for place_S in places], dim=-1)
        angle_SJ = nn.functional.pad(angle_SJ, (0, self.head_dim // 2 - angle_SJ.shape[1]))
        return torch.cat((angle_SJ.cos(), angle_SJ.sin()), dim=-1).to(self.dtype)


class ApplyRotaryEmbedding(nn.Module):
    def forward(self, query: Tensor, key: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
        """query and key [B, S, H, K], freqs_cis [S, K] -> (query, key), rotated"""
        return kernels.rope_pairs(query, key, freqs_cis)
