"""Attention pooling: a learned query attends over all tokens of each image.

    q = p Wq^T + bq,  [k | v] = x Wkv^T + bkv
    a = attention(q, k, v) Wo^T + bo
    y = a + mlp(layer_norm(a))

T tokens of B images, D hidden, H heads, K = D / H head size, p the learned query (probe); scale 1/sqrt(K).
Rounded to the dtype of x after each product, after the attention, the norm and the sum.
Mirrors transformers.models.siglip2.modeling_siglip2.Siglip2MultiheadAttentionPoolingHead (timm:
layers.AttentionPoolLatent).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.dense_attention import PooledAttention
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from .mlp import MLP


class AttentionPool(nn.Module):
    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, hidden_act: str, layer_norm_eps: float
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.probe = nn.Parameter(torch.empty(1, 1, hidden_size), requires_grad=False)
        self.q_proj = Linear(hidden_size, hidden_size, bias=True)
        self.kv_proj = Linear(hidden_size, 2 * hidden_size, bias=True)
        self.attn = PooledAttention(self.head_size**-0.5)
        self.out_proj = Linear(hidden_size, hidden_size, bias=True)
        self.layernorm = LayerNorm(hidden_size, layer_norm_eps)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)

    def forward(self, hidden_state: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """hidden_state [T, D], cu_seqlens int32 [B+1] -> [B, D]"""
        images = cu_seqlens.shape[0] - 1
        q_1D = self.q_proj(self.probe[0])
        q_BHK = q_1D.repeat(images, 1).unflatten(-1, (self.num_heads, self.head_size))
        kv_T2HK = self.kv_proj(hidden_state).unflatten(-1, (2, self.num_heads, self.head_size))
        k_THK, v_THK = kv_T2HK.unbind(1)
        o_BHK = self.attn(q_BHK, k_THK, v_THK, cu_seqlens, max_seqlen)
        a_BD = self.out_proj(o_BHK.flatten(1))
        return a_BD + self.mlp(self.layernorm(a_BD))
