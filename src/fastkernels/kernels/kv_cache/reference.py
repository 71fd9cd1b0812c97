"""store_kv in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def store_kv(key_TJK: Tensor, value_TJK: Tensor, k_cache: Tensor, v_cache: Tensor, slots_T: Tensor) -> None:
    # A view, never a copy: a cache whose blocks cannot be seen as one list of slots is refused by torch.
    k_cache.view(-1, *k_cache.shape[2:]).index_copy_(0, slots_T, key_TJK)
    v_cache.view(-1, *v_cache.shape[2:]).index_copy_(0, slots_T, value_TJK)
