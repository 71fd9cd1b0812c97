"""One decode step of attention from unrotated queries and keys: rotate, store the new key and value, attend.

    q, k = rope(positions, q, k)                                          as kernels/rope
    k_cache[slot // P, slot % P] = k[b]      v_cache likewise             as kernels/kv_cache, slot = slots[b]
    o = softmax(scale * q K^T) V                                          as kernels/decode_attention

B rows · H query heads · J key/value heads · K head dim · R rotated dims, even, <= K · M positions of the
table · P block size. A row's own key is the last of its seq_len keys. Rotated queries and keys are rounded to
the dtype of the input.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.rope_decode_attention import reference

_rope_decode_attention = Kernel(
    "rope_decode_attention",
    "(Tensor query, Tensor key, Tensor value, Tensor positions, Tensor cos_sin, Tensor(a!) k_cache, "
    "Tensor(b!) v_cache, Tensor slots, Tensor seq_lens, Tensor block_tables, float scale, int window, "
    "SymInt max_seq_len) -> Tensor",
    reference.rope_decode_attention,
    fake=lambda q_BHK, *_: q_BHK.new_empty(q_BHK.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("parts", f"{__name__}.parts", devices=("cpu", "cuda")),
    ),
    rows=lambda q_BHK, *_: q_BHK.shape[0],
)


def rope_decode_attention(
    q_BHK: Tensor,
    k_BJK: Tensor,
    v_BJK: Tensor,
    positions_B: Tensor,
    cos_sin_MR: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots_B: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int | None,
    max_seq_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """Attention output [B, H, K], contiguous; rotated keys, and values, are in their slots then.

    positions, q, k and cos_sin are those of `rope`; k, v, the caches [N, P, J, K] and slots, with padding in
    the null block, those of `store_kv`; seq_lens, block_tables, scale, window and max_seq_len those of
    `decode_attention`. A row with 0 keys is padding: its output is zeros. Raises KernelError when `impl`
    cannot serve the call.
    """
    rows = q_BHK, k_BJK, v_BJK, positions_B, cos_sin_MR
    paged = k_cache, v_cache, slots_B, seq_lens_B, block_tables_BN
    return _rope_decode_attention(*rows, *paged, scale, window or 0, max_seq_len, impl=impl)
