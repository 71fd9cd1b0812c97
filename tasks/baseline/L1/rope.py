"""Rotary position embedding of queries and keys, half-split (NeoX) layout.

    a = position * f[j],  j < R/2
    y[j]       = x[j] cos(a) - x[j + R/2] sin(a)
    y[j + R/2] = x[j + R/2] cos(a) + x[j] sin(a)

T tokens, H query heads, J key heads, K head size, R <= K rotated features, P positions; features from R on
are copied. `rope_parameters` are those of a Hugging Face configuration (rope_type default, llama3 or yarn;
rope_theta; ...) and give the frequencies f. Angles, cos and sin are float32; the table is cast once, to the
dtype of the module.
Mirrors vllm.model_executor.layers.rotary_embedding.RotaryEmbedding, as `get_rope` builds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels import kernels


class RotaryEmbedding(nn.Module):
    cos_sin_PR: Tensor

    def __init__(self, head_size: int, max_position: int, rope_parameters: dict[str, Any]) -> None:
        super().__init__()
        self.head_size = head_size
        # Equal arguments give one shared tensor, so the layers of a model hold a single table.
        table_PR = kernels.rotary_table(
            head_size, max_position, rope_parameters, torch.get_default_dtype(), torch.get_default_device()
        )
        self.register_buffer("cos_sin_PR", table_PR, persistent=False)

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """positions [T], query [T, H*K], key [T, J*K] (rows may be strided) -> (query, key), rotated."""
        query_THK = query.view(query.shape[0], -1, self.head_size)
        key_TJK = key.view(key.shape[0], -1, self.head_size)
        query_THK, key_TJK = kernels.rope(positions, query_THK, key_TJK, self.cos_sin_PR)
        return query_THK.flatten(1), key_TJK.flatten(1)

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's row of a table, and the table: what a kernel that rotates needs."""
        return positions, self.cos_sin_PR
