"""Bidirectional attention of packed rows: every query of a row sees every key of the row.

    o[i] = sum_j softmax_j(scale q[i] . k[j]) v[j]        j in the row of i

B rows, T queries and S keys in all, H heads, K head size. Rows lie one behind the other; cu_seqlens_q and
cu_seqlens_k say where each begins. Softmax and sums in at least float32; o has the dtype of the query.
Mirrors flash_attn.flash_attn_varlen_func with causal=False, which vLLM's MMEncoderAttention calls.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class DenseAttention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        query_THK: Tensor,
        key_SHK: Tensor,
        value_SHK: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> Tensor:
        """query [T, H, K], key and value [S, H, K], cu_seqlens int32 [B+1] from 0 to T and S -> [T, H, K]"""
        return kernels.dense_attention(
            query_THK,
            key_SHK,
            value_SHK,
            cu_seqlens_q,
            cu_seqlens_k,
            self.scale,
            max_seqlen_q,
            max_seqlen_k,
        )
