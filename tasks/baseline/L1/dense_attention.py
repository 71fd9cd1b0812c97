"""Attention of packed rows: every query of a row sees every key of the row, or, causal, those up to itself.

    o[h, i] = sum_j softmax_j(scale q[h, i] . k[h, j] + bias[h, i, j]) v[h, j]        j in the row of i

B rows, T tokens in all, H heads, K head size, S places of a row. Rows lie one behind the other;
cu_seqlens says where each begins. The bias, if there is one, goes by the places of query and key in their
row. Keys may be fewer than queries: those that are given of each row, with starts of their own. The pooled
variant has one query for each row, the block variant queries of some places of it, whose heads may share
J heads of keys: H / J consecutive ones have one. cross: rows of L queries see the N keys of another sequence,
all rows alike. Softmax and sums in at least float32; o has the dtype of the query.
Mirrors vllm.model_executor.layers.attention.mm_encoder_attention.MMEncoderAttention (and
flash_attn.flash_attn_varlen_func with causal=False); cross:
torch.nn.functional.scaled_dot_product_attention, there with heads before tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class DenseAttention(nn.Module):
    def __init__(self, scale: float, causal: bool = False) -> None:
        super().__init__()
        self.scale, self.causal = scale, causal

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        bias: Tensor | None = None,
        key_cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """query, key and value [T, H, K], cu_seqlens int32 [B+1] from 0 to T, bias [H, S, S], S at least
        that of the longest row -> [T, H, K]. key_cu_seqlens int32 [B+1] from 0 to N: key and value are
        [N, H, K], and each row has at least one, and no more than queries."""
        starts = (cu_seqlens, cu_seqlens if key_cu_seqlens is None else key_cu_seqlens)
        extent = (max_seqlen, max_seqlen)
        return kernels.dense_attention(query, key, value, *starts, self.scale, *extent, self.causal, bias)


class PooledAttention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int
    ) -> Tensor:
        """query [B, H, K], key and value [T, H, K], cu_seqlens int32 [B+1] from 0 to T -> [B, H, K]"""
        starts_B1 = torch.arange(query.shape[0] + 1, dtype=torch.int32, device=cu_seqlens.device)
        return kernels.dense_attention(query, key, value, starts_B1, cu_seqlens, self.scale, 1, max_seqlen)


class BlockAttention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> Tensor:
        """query [N, H, K], key and value [T, J, K], cu_seqlens_q int32 [B+1] from 0 to N, cu_seqlens_k int32
        [B+1] from 0 to T, each row at least as long as its queries; one without queries is not read ->
        [N, H, K]"""
        starts, extent = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
        return kernels.dense_attention(query, key, value, *starts, self.scale, *extent)


class CrossDenseAttention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [B, L, H, K], key and value [B, N, H, K] -> [B, L, H, K]"""
        rows, *extent = len(query), query.shape[1], key.shape[1]
        steps_B1 = torch.arange(rows + 1, dtype=torch.int32, device=query.device)
        starts = [steps_B1 * length for length in extent]
        packed = [x.flatten(0, 1) for x in (query, key, value)]
        return kernels.dense_attention(*packed, *starts, self.scale, *extent).view(query.shape)
