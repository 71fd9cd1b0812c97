"""Rotary positions of the patches of a video on three axes: the table of angles, and what is done with it.

    a[p, s n + m] = ids[p, s] theta^(-2 (m mod n/2) / n)      m < n,  s = 0, 1, 2: frame, row, column
    a[p, d] = 0                                               3n <= d < K
    table = [cos a | sin a]
    y[2j]     = x[2j]     cos a[2j]     - x[2j + 1] sin a[2j]
    y[2j + 1] = x[2j + 1] cos a[2j + 1] + x[2j]     sin a[2j + 1]

P places of patches, n = 2 ((K / 3) / 2) features of an axis, in whole numbers, K head size; T tokens, H
heads. Neighbours are a pair, and the angles of an axis run through its first half and again through its
second: the two of a pair have different angles, so that y is not x turned, and its length changes. So the
model was trained. Features from 3n on stay as they are. Angles are float64, the table is rounded once to
float32 (float64 for a float64 module), whatever the dtype of the model; the sums are computed in float32 and
rounded once to the dtype of their input.
Mirrors what transformers.models.vjepa2.modeling_vjepa2.VJEPA2RopeAttention does before it attends:
get_position_ids and apply_rotary_embeddings, with rotate_queries_or_keys. Its table has the dtype of the
model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels

AXES = 3
THETA = 10000.0  # not in the configuration


class VideoRopeTable(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim, self.axis_dim = head_dim, 2 * (head_dim // AXES // 2)
        self.dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)

    def forward(self, ids: Tensor) -> Tensor:
        """integers [P, 3]: frame, row and column -> [P, 2 K]"""
        half = torch.arange(self.axis_dim // 2, dtype=torch.float64, device=ids.device)
        rates_N = (THETA ** -(half / max(1, self.axis_dim // 2))).repeat(2)
        angle_PR = (ids[:, :, None] * rates_N).flatten(1)
        angle_PK = nn.functional.pad(angle_PR, (0, self.head_dim - AXES * self.axis_dim))
        return torch.cat((angle_PK.cos(), angle_PK.sin()), dim=-1).to(self.dtype)


class ApplyVideoRope(nn.Module):
    def forward(self, q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q and k [T, H, K], cos_sin [P, 2 K], positions int64 [T], each token's row -> (q, k) with
        positions"""
        return kernels.rope_by_feature(positions, q, k, cos_sin)
