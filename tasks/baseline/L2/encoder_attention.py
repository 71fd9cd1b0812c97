"""Self-attention block of an encoder over packed rows: project, attend in both directions, project back.

    [q | k | v] = x Wqkv^T + b
    y = attention(q, k, v) Wo^T + bo

T tokens, D hidden, H heads, K = D / H head size, B rows; scale 1/sqrt(K). A token sees all tokens of its row.
Rounded to the dtype of x after each line.
Mirrors vllm.model_executor.models.siglip2.Siglip2Attention (also transformers' Siglip2Attention, timm's
layers.Attention).
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.dense_attention import DenseAttention
from .parallel_linear import QKVParallelLinear, RowParallelLinear


class EncoderAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.qkv_proj = QKVParallelLinear(hidden_size, self.head_size, num_heads, num_heads, bias)
        self.attn = DenseAttention(self.head_size**-0.5)
        self.out_proj = RowParallelLinear(num_heads * self.head_size, hidden_size, bias)

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """hidden_states [T, D], cu_seqlens int32 [B+1] -> [T, D]"""
        qkv_T3HK = self.qkv_proj(hidden_states).unflatten(-1, (3, self.num_heads, self.head_size))
        q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
        o_THK = self.attn(q_THK, k_THK, v_THK, cu_seqlens, max_seqlen)
        return self.out_proj(o_THK.flatten(1))
