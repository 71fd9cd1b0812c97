"""Store the keys and values that requests keep of their source, where they begin.

    key_cache[begun[a], j] = key[a S + j]
    value_cache[begun[a], j] = value[a S + j]        for each request a that begins and each of its keys j

A requests that begin, R rows of the pools, S keys of each request, H heads, K head size. Rows are copied
exactly; no other row of the pools is touched. Row 0 is null: what is written there is never read. Nothing is
returned: the caches are the outputs.
Mirrors vllm.model_executor.layers.attention.cross_attention.CrossAttention, whose cache is written by
reshape_and_cache_flash.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.context import state_slots


class StoreCross(nn.Module):
    def forward(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, begun: Tensor
    ) -> None:
        """key, value [A*S, H, K] (rows may be strided), caches [R, S, H, K] (written), begun int64 [A]"""
        kernels.store_kv(key, value, key_cache, value_cache, state_slots(begun, key_cache.shape[1]))
