"""Writes one slot too many behind each one that it was asked to write."""

from fastkernels.baseline.L1.kv_cache import StoreKV as Baseline


class StoreKV(Baseline):
    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        super().forward(key, value, key_cache, value_cache, slot_mapping)
        pool = key_cache.view(-1, *key_cache.shape[2:])
        pool[(slot_mapping + 1) % len(pool)] = 0
        super().forward(key, value, key_cache, value_cache, slot_mapping)
