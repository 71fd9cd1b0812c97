"""decode_attention by flash-attn's split-KV kernel over a paged cache; lengths stay on the device."""

from __future__ import annotations

from flash_attn import flash_attn_with_kvcache  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels.kv_cache import limits


def unsupported(
    kernel: str,
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
) -> str | None:
    return limits.no_sinks(sinks_H) or limits.flash_attn(q_BHK, k_cache, v_cache)


def decode_attention(
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
) -> Tensor:
    o_B1HK = flash_attn_with_kvcache(
        q_BHK[:, None],
        k_cache,
        v_cache,
        cache_seqlens=seq_lens_B,
        block_table=block_tables_BN,
        softmax_scale=scale,
        causal=True,
        window_size=(window - 1, 0) if window else (-1, -1),
    )
    # Rows without keys: what the library leaves there is no part of its contract.
    return o_B1HK[:, 0].masked_fill_(seq_lens_B[:, None, None] == 0, 0)
