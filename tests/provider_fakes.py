"""What FlashAttention's packages and vLLM's operators compute, by their documented definition, on a CPU.

T query tokens · B rows · H query heads · J key/value heads · K head dim · S keys of a row
"""

from __future__ import annotations

import torch
from torch import Tensor

FA3 = (
    "fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, "
    "Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, "
    "Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, "
    "Tensor? k_descale, Tensor? v_descale, float softmax_scale, bool is_causal, int window_size_left, "
    "int window_size_right, float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, "
    "int num_splits, bool? pack_gqa, int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank, "
    "Tensor? cp_tot_seqused_k) -> Tensor[]"
)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    seq_lens: Tensor | None,
    tables: Tensor | None,
    scale: float,
    causal: bool,
    window: tuple[int | None, int | None],
    sinks: Tensor | None = None,
    q_v: Tensor | None = None,
) -> Tensor:
    """Rows of packed queries, or queries [B, Q, H, K]; the last query of a row meets its last key. A window
    of -1 or None is none."""
    rows = len(q) if query_starts is None else len(query_starts) - 1
    if query_starts is not None:
        assert query_starts[0] == 0
        assert query_starts[-1] == len(q)
    out = q.new_full((*q.shape[:-1], v.shape[-1]), torch.nan)
    for b in range(rows):
        of_q = b if query_starts is None else slice(*query_starts[b : b + 2].tolist())
        if tables is None:
            of_k = slice(*key_starts[b : b + 2].tolist())
            keys, values = k[of_k], v[of_k]
        else:
            blocks = tables[b, : -(-int(seq_lens[b]) // k.shape[1])].long()
            keys, values = (cache[blocks].flatten(0, 1)[: seq_lens[b]] for cache in (k, v))
        group = q.shape[-2] // k.shape[-2]
        keys, values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
        scores_HQS = torch.einsum("qhk,shk->hqs", q[of_q].double(), keys)
        if q_v is not None:
            scores_HQS += torch.einsum("qhk,shk->hqs", q_v[of_q].double(), values)
        at_S = torch.arange(len(keys))
        ahead_QS = (
            at_S - (at_S.new_tensor(range(scores_HQS.shape[1])) + len(keys) - scores_HQS.shape[1])[:, None]
        )
        left, right = (None if size in (None, -1) else size for size in window)
        right = 0 if causal else right
        hidden_QS = torch.zeros_like(ahead_QS, dtype=torch.bool)
        if left is not None:
            hidden_QS |= ahead_QS < -left
        if right is not None:
            hidden_QS |= ahead_QS > right
        weights_HQS = (scores_HQS * scale).exp().masked_fill(hidden_QS, 0)
        total_HQ = weights_HQS.sum(-1)
        if sinks is not None:
            total_HQ += sinks.double().exp()[:, None]
        o_QHK = torch.einsum(
            "hqs,shk->qhk", weights_HQS, values.masked_fill(hidden_QS.all(0)[:, None, None], 0)
        )
        out[of_q] = (o_QHK / total_HQ.clamp(min=1e-300).T[..., None]).to(out.dtype)
    return out


def fa3_forward(
    q, k, v, k_new, v_new, q_v, out, query_starts, key_starts, key_starts_new, queries_used, seq_lens,
    max_queries, max_keys, tables, batch_index, left_pad, cos, sin, rotary_lens, q_scale, k_scale, v_scale,
    scale, causal, left, right, softcap, interleaved, scheduled, splits, pack, margin, sinks, world, rank,
    total,
) -> list[Tensor]:  # fmt: skip
    """The operator of vLLM."""
    unused = (k_new, v_new, out, key_starts_new, queries_used, batch_index, left_pad, cos, sin, rotary_lens)
    assert all(x is None for x in (*unused, q_scale, k_scale, v_scale, scheduled, pack, total))
    assert (softcap, splits, margin, world, rank) == (0.0, 0, 0, 1, 0)
    _covers(query_starts, seq_lens, max_queries, max_keys)
    o = attend(q, k, v, query_starts, key_starts, seq_lens, tables, scale, causal, (left, right), sinks, q_v)
    return [o, torch.empty(0)]


def flash_attn_with_kvcache(
    q, k_cache, v_cache, *, cache_seqlens, page_table, cu_seqlens_q=None, max_seqlen_q=None, softmax_scale,
    causal, window_size,
) -> Tensor:  # fmt: skip
    """Of flash_attn_interface, the package of FlashAttention-3."""
    _covers(cu_seqlens_q, cache_seqlens, max_seqlen_q, None)
    lengths = (cu_seqlens_q, None, cache_seqlens, page_table)
    return attend(q, k_cache, v_cache, *lengths, softmax_scale, causal, window_size)


def fa3_varlen(q, k, v, starts, key_starts, most, most_keys, *, softmax_scale, causal) -> Tensor:
    """flash_attn_varlen_func of flash_attn_interface."""
    _covers(starts, key_starts.diff(), most, most_keys)
    return attend(q, k, v, starts, key_starts, None, None, softmax_scale, causal, (-1, -1))


def fa4_varlen(
    q, k, v, *, cu_seqlens_q=None, cu_seqlens_k=None, seqused_k=None, page_table=None, max_seqlen_q=None,
    max_seqlen_k, softmax_scale, causal, window_size=(None, None), learnable_sink=None,
) -> tuple[Tensor, None]:  # fmt: skip
    """flash_attn_varlen_func of flash_attn.cute, the package of FlashAttention-4."""
    _covers(cu_seqlens_q, cu_seqlens_k.diff() if seqused_k is None else seqused_k, max_seqlen_q, max_seqlen_k)
    lengths = (cu_seqlens_q, cu_seqlens_k, seqused_k, page_table)
    return attend(q, k, v, *lengths, softmax_scale, causal, window_size, learnable_sink), None


def _covers(
    starts: Tensor | None, keys: Tensor | None, most_queries: int | None, most_keys: int | None
) -> None:
    """The bounds that the host knows."""
    assert starts is None or most_queries >= starts.diff().max()
    assert keys is None or most_keys is None or most_keys >= keys.max()


def rms_norm(result: Tensor, x: Tensor, weight: Tensor | None, epsilon: float) -> None:
    """The operator of vLLM: one rounding."""
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    result.copy_(y if weight is None else y * weight.float())


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float) -> None:
    """The operator of vLLM, which writes over both."""
    residual.add_(x)
    rms_norm(x, residual.clone(), weight, epsilon)
