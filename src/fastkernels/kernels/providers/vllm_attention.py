"""Attention by vLLM's build of FlashAttention-3: over a paged cache, of packed rows, and over latents.

Its queries of latents come in two parts: those that meet what is the value, too, and the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.providers import flash_attention
from fastkernels.kernels.providers.flash_attention import from_zero
from fastkernels.kernels.providers.vllm_operator import Operator

_FORWARD = Operator(
    "_vllm_fa3_C",
    "fwd",
    "q k v k_new v_new q_v out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k max_seqlen_q "
    "max_seqlen_k page_table kv_batch_idx leftpad_k rotary_cos rotary_sin seqlens_rotary q_descale k_descale "
    "v_descale softmax_scale is_causal window_size_left window_size_right softcap is_rotary_interleaved "
    "scheduler_metadata num_splits pack_gqa sm_margin s_aux cp_world_size cp_rank cp_tot_seqused_k",
)
MAX_HEADS_WITH_SINKS = 64
LATENTS = (256, 512)
MAX_REST = 64


class Keys(NamedTuple):
    """Where a call's queries and keys lie: packed ones have starts, those of a cache lengths and tables."""

    query_starts_B1: Tensor | None = None  # None: one query for each row
    key_starts_B1: Tensor | None = None
    seq_lens_B: Tensor | None = None
    tables_BN: Tensor | None = None


def unsupported(kernel: str, q: Tensor, k: Tensor, *rest: Any) -> str | None:
    if kernel.startswith("mla"):
        latent = rest[4 if kernel == "mla_prefill" else 3]
        return _no_latents(q, k, latent) or flash_attention.no_blocks(k, rest) or _FORWARD.missing
    reason = flash_attention.unsupported(kernel, q, k, *rest)
    return reason or _no_sinks(q, flash_attention.sinks(kernel, rest)) or _FORWARD.missing


def _no_sinks(q_THK: Tensor, sinks_H: Tensor | None) -> str | None:
    if reason := flash_attention.not_bfloat16(q_THK, sinks_H):
        return reason
    if sinks_H is not None and q_THK.shape[1] > MAX_HEADS_WITH_SINKS:
        return f"serves sinks of up to {MAX_HEADS_WITH_SINKS} heads, not {q_THK.shape[1]}"
    return None


def _no_latents(q_THC: Tensor, cache_NPC: Tensor, latent: int) -> str | None:
    if not flash_attention.on_hopper(q_THC):
        return "needs compute capability 9"
    if latent not in LATENTS:
        return f"serves {' or '.join(map(str, LATENTS))} latent features, not {latent}"
    if not 0 < (rest := q_THC.shape[-1] - latent) <= MAX_REST or rest % 8:
        return f"serves 8 to {MAX_REST} other features that 8 divides, not {rest}"
    return checks.not_half(q_THC, cache_NPC) or checks.not_aligned(q_THC, cache_NPC)


def prefill_attention(
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
    keys = Keys(from_zero(query_starts_B1), None, seq_lens_B, block_tables_BN)
    extent = max_query_len, max_seq_len
    return _attend(q_THK, k_cache, v_cache, keys, extent, scale, window=window, sinks=sinks_H)


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
    keys = Keys(seq_lens_B=seq_lens_B, tables_BN=block_tables_BN)
    extent = 1, max_seq_len
    return _attend(q_BHK, k_cache, v_cache, keys, extent, scale, window=window, sinks=sinks_H)


def dense_attention(
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
    keys = Keys(query_starts_B1, key_starts_B1)
    return _attend(q_THK, k_SHK, v_SHK, keys, (max_query_len, max_key_len), scale, causal=causal)


def mla_prefill(
    q_THC: Tensor,
    cache_NPC: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_query_len: int,
    max_seq_len: int,
) -> Tensor:
    keys = Keys(from_zero(query_starts_B1), None, seq_lens_B, block_tables_BM)
    return _attend_latents(q_THC, cache_NPC, latent, keys, (max_query_len, max_seq_len), scale)


def mla_decode(
    q_BHC: Tensor,
    cache_NPC: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_seq_len: int,
) -> Tensor:
    keys = Keys(seq_lens_B=seq_lens_B, tables_BN=block_tables_BM)
    return _attend_latents(q_BHC, cache_NPC, latent, keys, (1, max_seq_len), scale)


def _attend_latents(
    q_THC: Tensor, cache_NPC: Tensor, latent: int, keys: Keys, extent: tuple[int, int], scale: float
) -> Tensor:
    value_NP1L, rest_NP1R = cache_NPC[:, :, None].tensor_split((latent,), -1)
    q_THL, q_THR = q_THC.tensor_split((latent,), -1)
    return _attend(q_THR, rest_NP1R, value_NP1L, keys, extent, scale, q_of_value=q_THL)


def _attend(
    q_THK: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    extent: tuple[int, int],
    scale: float,
    *,
    q_of_value: Tensor | None = None,
    causal: bool = True,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """extent: the longest row's queries and keys."""
    if not len(q_THK):
        return q_THK.new_empty((*q_THK.shape[:2], v.shape[-1]))
    q, q_v = q_THK, q_of_value
    if keys.query_starts_B1 is None:
        q, q_v = q[:, None], None if q_v is None else q_v[:, None]
    left, right = (window - 1, 0) if window else (-1, -1)
    o, *_ = _FORWARD.call(
        q, k, v, None, None, q_v, None, keys.query_starts_B1, keys.key_starts_B1, None, None,
        keys.seq_lens_B, *extent, keys.tables_BN, None, None, None, None, None, None, None, None, scale,
        causal, left, right, 0.0, True, None, 0, None, 0, sinks, 1, 0, None,
    )  # fmt: skip
    return o[:, 0] if keys.query_starts_B1 is None else o
