"""A point as features of several grids, whose nodes share the rows of one table by a hash.

    y[l] = sum over the 8 corners c of its cell:  prod_i |1 - c_i - w_i|  hash_table[offset_l + row_l(g + c)]
    p = scale_l x + 0.5,  g = floor(p),  w = p - g,  scale_l = base_resolution per_level_scale^l - 1

M points, L levels of F features, one behind the other. row_l counts the nodes of a grid that has no more of
them than 2^log2_hashmap_size, and hashes those of finer ones: g.x ^ 2654435761 g.y ^ 805459861 g.z. Both are
modulo the level's rows. `encoding_config` has tiny-cuda-nn's keys for HashGrid. Computed in at least float32;
y has the dtype of the table.
Mirrors tinycudann.Encoding with otype HashGrid, linear interpolation and the coherent prime hash.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.kernels.hash_encoding import levels_of
from fastkernels.nn.config import ConfigReader


class HashEncoding(nn.Module):
    def __init__(self, n_input_dims: int, encoding_config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(encoding_config)
        reader.choice("otype", {"HashGrid": None, "Grid": None})
        reader.choice("type", {"Hash": None}, default="Hash")
        reader.choice("interpolation", {"Linear": None}, default="Linear")
        reader.choice("hash", {"CoherentPrime": None}, default="CoherentPrime")
        if n_input_dims != 3:
            raise ValueError(f"n_input_dims must be 3, not {n_input_dims}")
        self.levels = levels_of(
            reader.integer("n_levels"),
            reader.integer("log2_hashmap_size"),
            reader.integer("base_resolution", minimum=2),
            reader.number("per_level_scale"),
        )
        features = reader.integer("n_features_per_level")
        self.n_output_dims = reader.integer("n_levels") * features
        self.hash_table = nn.Parameter(torch.empty(self.levels.offsets[-1], features), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[M, 3] in [0, 1] -> [M, L F]"""
        return kernels.hash_encoding(x, self.hash_table, *self.levels)
