"""Writing keys and values into a paged cache.

    k_cache[slot // P, slot % P] = key[t]      v_cache likewise      with slot = slots[t]

T tokens · J key/value heads · K head dim · N blocks · P block size
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.kv_cache import reference

_store_kv = Kernel(
    "store_kv",
    "(Tensor key, Tensor value, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> ()",
    reference.store_kv,
    fake=lambda key_TJK, value_TJK, k_cache, v_cache, slots_T: None,
    implementations=(Implementation("triton", f"{__name__}.triton"),),
    rows=lambda key_TJK, *_: key_TJK.shape[0],
    work=lambda tally, k, v, k_cache, v_cache, slots: tally.store((k_cache, v_cache), (k, v)),
)


def store_kv(
    key_TJK: Tensor,
    value_TJK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_T: Tensor,
    *,
    impl: str | None = None,
) -> None:
    """Write each token's key and value to its slot of the caches, in place.

    key_TJK, value_TJK: any strides with a contiguous last dimension (views of a packed qkv product).
    k_cache, v_cache [N, P, J, K]: same dtype as key and value; a slot is one of N * P places of [J, K].
    slots_T: int64. Slots of real tokens are distinct. Slots below P lie in the null block 0: padding, which
    may be written in any order or not at all, and which nothing may read. Raises KernelError when `impl`
    cannot serve the call.
    """
    _store_kv(key_TJK, value_TJK, k_cache, v_cache, slots_T, impl=impl)
