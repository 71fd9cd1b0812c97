"""Writes one slot too many behind each one that it was asked to write."""

from fastkernels.baseline.L1.kv_cache import StoreKV as Baseline


class StoreKV(Baseline):
    def forward(self, key, value, k_cache, v_cache, slots):
        super().forward(key, value, k_cache, v_cache, slots)
        pool = k_cache.view(-1, *k_cache.shape[2:])
        pool[(slots + 1) % len(pool)] = 0
        super().forward(key, value, k_cache, v_cache, slots)
