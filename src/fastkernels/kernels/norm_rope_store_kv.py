"""Heads normalised, queries and keys rotated, keys and values written straight into a paged cache.

    q, k, v = rms_norm(q; w_q), rms_norm(k; w_k), rms_norm(v)        over each head, as kernels/rms_norm
    q; k_cache, v_cache = rope_store_kv(positions, q, k, v)          as kernels/rope_store_kv

T tokens · H query heads · J key/value heads · K head dim · R rotated dims, even, <= K · M positions of the
table · N blocks · P block size. Rounded where these two round: to the dtype of the input after a norm's
quotient, after its product with a weight, and after the rotation. k and v may be one tensor.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel, registered
from fastkernels.kernels.rms_norm import rms_norm
from fastkernels.kernels.rope_store_kv import rope_store_kv


def _in_turn(norm: Callable[..., Tensor], rotate_and_store: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Three norms, then the rotation."""

    def run(
        positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, v_TJK: Tensor, q_weight_K: Tensor,
        k_weight_K: Tensor, eps: float, *table_and_cache: Tensor,
    ) -> Tensor:  # fmt: skip
        normed = norm(q_THK, q_weight_K, eps), norm(k_TJK, k_weight_K, eps), norm(v_TJK, None, eps)
        return rotate_and_store(positions_T, *normed, *table_and_cache)

    return run


_norm_rope_store_kv = Kernel(
    "norm_rope_store_kv",
    "(Tensor positions, Tensor query, Tensor key, Tensor value, Tensor q_weight, Tensor k_weight, float eps, "
    "Tensor cos_sin, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> Tensor",
    _in_turn(registered["rms_norm"].reference, registered["rope_store_kv"].reference),
    fake=lambda positions_T, q_THK, *_: q_THK.new_empty(q_THK.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _in_turn(rms_norm, rope_store_kv), devices=("cpu", "cuda")),
    ),
    rows=lambda positions_T, *_: positions_T.shape[0],
)


def norm_rope_store_kv(
    positions_T: Tensor,
    q_THK: Tensor,
    k_TJK: Tensor,
    v_TJK: Tensor,
    q_weight_K: Tensor,
    k_weight_K: Tensor,
    eps: float,
    cos_sin_MR: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_T: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """The normalised and rotated queries [T, H, K], contiguous; keys and values are in their slots then.

    The weights have the dtype of q, and all else is as `rope_store_kv` takes it. Raises KernelError when
    `impl` cannot serve the call.
    """
    cache = (cos_sin_MR, k_cache, v_cache, slots_T)
    return _norm_rope_store_kv(
        positions_T, q_THK, k_TJK, v_TJK, q_weight_K, k_weight_K, eps, *cache, impl=impl
    )
