"""FlashAttention's kernels for Hopper: what the packages that have them can serve.

They read keys in whole tiles. What lies behind a row's end counts as zeros, in blocks shorter than a tile.
Keys before a window are read, too, and weighted with zero: they must be finite, as all are that any row has
stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.plans import planned_on_device

SMALLEST_TILE = 64  # keys; the copy engine fetches a block whole that is a multiple of a tile
MAX_HEAD_DIM = 256


def unsupported(kernel: str, q: Tensor, k: Tensor, v: Tensor, *rest: Any, divisor: int = 8) -> str | None:
    """Sinks aside. divisor: of the head dimensions over a paged cache."""
    if not on_hopper(q):
        return "needs compute capability 9"
    if kernel == "dense_attention":
        divisor = 8
        if rest[-1] is not None:
            return "serves no bias"
    elif reason := no_blocks(k, rest):
        return reason
    if (head_dim := q.shape[-1]) > MAX_HEAD_DIM or head_dim % divisor:
        return f"serves head dimensions up to {MAX_HEAD_DIM} that {divisor} divides, not {head_dim}"
    return checks.not_half(q, k, v) or checks.not_aligned(q, k, v)


def no_blocks(cache: Tensor, rest: tuple[Any, ...]) -> str | None:
    """Of a paged cache and its block tables, the only argument of two dimensions in the rest."""
    if (block_size := cache.shape[1]) >= SMALLEST_TILE:
        return f"serves blocks of fewer than {SMALLEST_TILE} tokens, not {block_size}"
    if any(isinstance(x, Tensor) and x.ndim == 2 and x.stride(1) != 1 for x in rest):
        return "needs block tables with a contiguous last dimension"
    return None


def on_hopper(x: Tensor) -> bool:
    return torch.cuda.get_device_capability(x.device)[0] == 9


def sinks(kernel: str, rest: tuple[Any, ...]) -> Tensor | None:
    """Of a call over a paged cache, whose last argument they are where it has any."""
    is_given = kernel != "dense_attention" and isinstance(rest[-1], Tensor)
    return rest[-1] if is_given else None


def not_bfloat16(q: Tensor, sinks_H: Tensor | None) -> str | None:
    """Of the builds of FlashAttention-3 that take sinks."""
    if sinks_H is None or q.dtype == sinks_H.dtype == torch.bfloat16:
        return None
    return "serves sinks where they and the queries are bfloat16"


def from_zero(query_starts_B1: Tensor) -> Tensor:
    """The first query of each row, counted from the first row's."""
    return planned_on_device(
        "from_zero", (query_starts_B1,), (), lambda: query_starts_B1 - query_starts_B1[:1]
    )


@dataclass(frozen=True)
class Version3:
    """Kernels by the two functions of FlashAttention-3, which every package that ships it has.

    packed: flash_attn_varlen_func. paged: flash_attn_with_kvcache, with `sinks` where there are any.
    """

    packed: Callable[..., Tensor]
    paged: Callable[..., Tensor]

    def prefill_attention(
        self,
        q_THK: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        query_starts_B1: Tensor,
        seq_lens_B: Tensor,
        block_tables_BN: Tensor,
        scale: float,
        window: int,
        max_query_len: int,
        max_seq_len: int,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        queries = {"cu_seqlens_q": from_zero(query_starts_B1), "max_seqlen_q": max_query_len}
        keys = k_cache, v_cache, seq_lens_B, block_tables_BN
        return self._attend(q_THK, *keys, scale, window, sinks_H, **queries)

    def decode_attention(
        self,
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
        keys = k_cache, v_cache, seq_lens_B, block_tables_BN
        return self._attend(q_BHK[:, None], *keys, scale, window, sinks_H)[:, 0]

    def dense_attention(
        self,
        q_THK: Tensor,
        k_SHK: Tensor,
        v_SHK: Tensor,
        query_starts_B1: Tensor,
        key_starts_B1: Tensor,
        scale: float,
        max_query_len: int,
        max_key_len: int,
        causal: bool,
        bias_HQS: Tensor | None,
    ) -> Tensor:
        if not len(q_THK):
            return q_THK.new_empty(q_THK.shape)
        starts, extent = (query_starts_B1, key_starts_B1), (max_query_len, max_key_len)
        return self.packed(q_THK, k_SHK, v_SHK, *starts, *extent, softmax_scale=scale, causal=causal)

    def _attend(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        seq_lens_B: Tensor,
        block_tables_BN: Tensor,
        scale: float,
        window: int,
        sinks_H: Tensor | None,
        **queries: Any,
    ) -> Tensor:
        if not len(q):
            return q.new_empty(q.shape)
        return self.paged(
            q,
            k_cache,
            v_cache,
            cache_seqlens=seq_lens_B,
            page_table=block_tables_BN,
            softmax_scale=scale,
            causal=True,
            window_size=(window - 1, 0) if window else (-1, -1),
            **queries,
            **({} if sinks_H is None else {"sinks": sinks_H}),
        )
