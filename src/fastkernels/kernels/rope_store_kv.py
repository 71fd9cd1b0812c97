"""Rotary position embedding, with rotated keys and their values written straight into a paged cache.

    q, k = rope_reference(positions, q, k)                                          as kernels/rope
    k_cache[slot // P, slot % P] = k[t]      v_cache likewise             as kernels/kv_cache, slot = slots[t]

T tokens · H query heads · J key/value heads · K head dim · R rotated dims, even, <= K · M positions of the
table · N blocks · P block size. Rotated keys exist in the cache alone. Rounded where rope rounds: once, to
the dtype of the input.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.kv_cache import store_kv
from fastkernels.kernels.kv_cache.reference import store_kv as store_kv_reference
from fastkernels.kernels.rope import rope
from fastkernels.kernels.rope.reference import rope as rope_reference


def _in_turn(
    rotate: Callable[..., tuple[Tensor, Tensor]], store: Callable[..., None]
) -> Callable[..., Tensor]:
    """Two kernels; the rotated keys are written twice."""

    def run(
        positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, v_TJK: Tensor, cos_sin_MR: Tensor, *cache: Tensor
    ) -> Tensor:
        q_THK, k_TJK = rotate(positions_T, q_THK, k_TJK, cos_sin_MR)
        store(k_TJK, v_TJK, *cache)
        return q_THK

    return run


_rope_store_kv = Kernel(
    "rope_store_kv",
    "(Tensor positions, Tensor query, Tensor key, Tensor value, Tensor cos_sin, "
    "Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> Tensor",
    _in_turn(rope_reference, store_kv_reference),
    fake=lambda positions_T, q_THK, *_: q_THK.new_empty(q_THK.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _in_turn(rope, store_kv), devices=("cpu", "cuda")),
    ),
    rows=lambda positions_T, *_: positions_T.shape[0],
)


def rope_store_kv(
    positions_T: Tensor,
    q_THK: Tensor,
    k_TJK: Tensor,
    v_TJK: Tensor,
    cos_sin_MR: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_T: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """The rotated queries [T, H, K], contiguous; rotated keys, and values, are in their slots then.

    positions, q, k and cos_sin are those of `rope`; k, v, the caches [N, P, J, K] and slots, with padding in
    the null block, those of `store_kv`: one dtype but for the table's and the integers'. Raises KernelError
    when `impl` cannot serve the call.
    """
    return _rope_store_kv(positions_T, q_THK, k_TJK, v_TJK, cos_sin_MR, k_cache, v_cache, slots_T, impl=impl)
