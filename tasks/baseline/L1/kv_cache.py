"""Store the keys and values of a step's tokens in the paged cache.

    key_cache[slot // P, slot % P] = key
    value_cache[slot // P, slot % P] = value        for each token and its slot

T tokens, J kv heads, K head size, N blocks of P tokens. Rows are copied exactly, in the dtype of the
caches. Block 0 is the null block: a slot < P is padding, and what is written there is never read. All other
slots of a step are distinct. Nothing is returned: the caches are the outputs.
Mirrors vllm._custom_ops.reshape_and_cache_flash.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class StoreKV(nn.Module):
    def forward(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """key, value [T, J, K] (rows may be strided), caches [N, P, J, K] (written), slot_mapping int64
        [T]."""
        kernels.store_kv(key, value, key_cache, value_cache, slot_mapping)
