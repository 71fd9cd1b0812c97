"""Density and colour of points in a scene, seen from directions.

    h = density_network(hash(x)),  raw = [rgb_network([h, SH(d)]), h_0]

M points in the scene's box, scaled to [0, 1]^3. SH is the basis of spherical harmonics below `degree`. raw
has the logits of red, green and blue, then of the density. Parameters and raw have the dtype of the module,
points and directions at least float32.
Mirrors ngp.NerfNetwork.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..L1.fused_mlp import FusedMLP
from ..L1.hash_encoding import HashEncoding
from ..L1.spherical_harmonics import SphericalHarmonicsEncoding

GEOMETRY = 16  # outputs of the density network
CHANNELS = 3


class NerfNetwork(nn.Module):
    def __init__(
        self,
        pos_encoding: dict[str, Any],
        dir_encoding: dict[str, Any],
        density_network: dict[str, Any],
        rgb_network: dict[str, Any],
    ) -> None:
        super().__init__()
        self.pos_encoding = HashEncoding(3, pos_encoding)
        self.density_network = FusedMLP(self.pos_encoding.n_output_dims, GEOMETRY, density_network)
        self.dir_encoding = SphericalHarmonicsEncoding(3, dir_encoding)
        self.rgb_network = FusedMLP(GEOMETRY + self.dir_encoding.n_output_dims, CHANNELS, rgb_network)

    def forward(self, positions: Tensor, directions: Tensor) -> Tensor:
        """positions [M, 3] in [0, 1], directions [M, 3] of length one -> raw [M, 4]"""
        h_MG = self.density_network(self.pos_encoding(positions))
        seen_MS = self.dir_encoding(directions).to(h_MG.dtype)
        return torch.cat((self.rgb_network(torch.cat((h_MG, seen_MS), -1)), h_MG[:, :1]), -1)
