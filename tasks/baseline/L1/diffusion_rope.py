"""Rotary position embedding of tokens with several coordinates: the table of angles, and the rotation.

    a[s, j] = ids[s, axis] theta^(-2i / R[axis])        pair j: the i-th of its axis of R[axis] features
    table[s] = [cos a[s] | sin a[s]]
    y[2j]     = x[2j] cos a[s, j] - x[2j + 1] sin a[s, j]
    y[2j + 1] = x[2j + 1] cos a[s, j] + x[2j] sin a[s, j]

B requests, S tokens of each, A axes, H heads, K = sum(R) head size. Angles are float64, the table is rounded
once to float32 (float64 for a float64 module); the rotation is computed in float32 and rounded once to the
dtype of its input. All requests share the table.
Mirrors diffusers.models.transformers.transformer_flux.FluxPosEmbed (whose table holds every angle twice) and
diffusers.models.embeddings.apply_rotary_emb.
"""

from __future__ import annotations

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


class ApplyRotaryEmbedding(nn.Module):
    def forward(self, query: Tensor, key: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
        """query and key [B, S, H, K], freqs_cis [S, K] -> (query, key), rotated"""
        return kernels.rope_pairs(query, key, freqs_cis)
