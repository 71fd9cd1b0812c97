"""Rotary position embedding by positions on three axes, half-split (NeoX) layout.

    a[j] = p[axis(j)] * f[j],  j < K/2             axis: temporal, height or width
    y[j]       = x[j] cos a[j] - x[j + K/2] sin a[j]
    y[j + K/2] = x[j + K/2] cos a[j] + x[j] sin a[j]

T tokens, H query heads, J key heads, K head size, P positions of the table. `rope_parameters` as of L1/rope,
with mrope_section, the frequencies of each axis, and mrope_interleaved: whether axes take turns, or each has
its frequencies side by side. Tokens of text have one position on all axes: steps of such tokens alone give
[T], and the rotation is that of L1/rope. The table's rows are copied in the dtype of the module; the rotation
is rounded once to the dtype of its input.
Mirrors vllm.model_executor.layers.rotary_embedding.mrope.MRotaryEmbedding, as `get_rope` builds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.kernels import plans


class MRotaryEmbedding(nn.Module):
    cos_sin_PR: Tensor

    def __init__(self, head_size: int, max_position: int, rope_parameters: dict[str, Any]) -> None:
        super().__init__()
        self.head_size = head_size
        self.mrope_section = list(rope_parameters["mrope_section"])
        self.mrope_interleaved = bool(rope_parameters.get("mrope_interleaved", False))
        table_PR = kernels.rotary_table(
            head_size, max_position, rope_parameters, torch.get_default_dtype(), torch.get_default_device()
        )
        self.register_buffer("cos_sin_PR", table_PR, persistent=False)

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """positions [3, T], or [T] where the axes agree; query [T, H*K], key [T, J*K] (rows may be strided)
        -> (query, key), rotated."""
        query_THK = query.view(query.shape[0], -1, self.head_size)
        key_TJK = key.view(key.shape[0], -1, self.head_size)
        rows_T, table = self.rows(positions)
        query_THK, key_TJK = kernels.rope(rows_T, query_THK, key_TJK, table)
        return query_THK.flatten(1), key_TJK.flatten(1)

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's row of a table, and the table: on three axes one of the step's own, made once for all
        layers of a forward."""
        if positions.dim() == 1:
            return positions, self.cos_sin_PR

        def make() -> tuple[Tensor, Tensor]:
            table_TR = kernels.mrope_table(
                positions, self.cos_sin_PR, self.mrope_section, self.mrope_interleaved
            )
            return torch.arange(positions.shape[1], device=positions.device), table_TR

        if torch.compiler.is_compiling():
            return make()
        by = (tuple(self.mrope_section), self.mrope_interleaved)
        return plans.planned_on_device("mrope.rows", (positions, self.cos_sin_PR), by, make)
