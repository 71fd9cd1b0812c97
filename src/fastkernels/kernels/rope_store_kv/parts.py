"""rope_store_kv as two kernels, each the choice for this device; the rotated keys are written twice."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.kv_cache import store_kv
from fastkernels.kernels.rope import rope


def rope_store_kv(
    positions_T: Tensor,
    q_THK: Tensor,
    k_TJK: Tensor,
    v_TJK: Tensor,
    cos_sin_MR: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_T: Tensor,
) -> Tensor:
    q_THK, k_TJK = rope(positions_T, q_THK, k_TJK, cos_sin_MR)
    store_kv(k_TJK, v_TJK, k_cache, v_cache, slots_T)
    return q_THK
