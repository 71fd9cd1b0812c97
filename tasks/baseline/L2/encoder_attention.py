"""Self-attention block of an encoder: project, attend, project back.

    [q | k | v] = x Wqkv^T + b
    [q | k], v = (x + p) Wqk^T + b, x Wv^T + b                        positioned
    y = attention(q, k, v; bias) Wo^T + bo

T tokens, D hidden, H heads, K head size (D / H unless it is given), B rows of up to S tokens. Scores are
scaled by 1/sqrt(K), or not at all. A token sees all tokens of its row, or those among them that are
`attended`, or, causal, those up to itself; a bias of the scores goes by the places of two tokens in their
row. The positioned variant has rows of one length, and positions p of its tokens. Rounded to the dtype of x
after each line.
Mirrors vllm.model_executor.models.siglip2.Siglip2Attention (also transformers' Siglip2Attention,
CLIPAttention and, as encoder, T5Attention; timm's layers.Attention), and
transformers.models.rt_detr_v2.modeling_rt_detr_v2.RTDetrV2SelfAttention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.dense_attention import DenseAttention
from .parallel_linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)


class EncoderAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        bias: bool = True,
        head_size: int | None = None,
        scaled: bool = True,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size or hidden_size // num_heads
        # By the name random weights of scores that are not scaled are smaller (nn/random_weights.py).
        self.projection = "qkv_proj" if scaled else "unscaled_qkv_proj"
        qkv_proj = QKVParallelLinear(hidden_size, self.head_size, num_heads, num_heads, bias)
        self.add_module(self.projection, qkv_proj)
        self.attn = DenseAttention(self.head_size**-0.5 if scaled else 1.0, causal)
        self.out_proj = RowParallelLinear(num_heads * self.head_size, hidden_size, bias)

    def forward(
        self,
        hidden_states: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        position_bias: Tensor | None = None,
        attended: Tensor | None = None,
        key_cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """hidden_states [T, D], cu_seqlens int32 [B+1], position_bias [H, S, S], S at least that of the
        longest row -> [T, D]. attended int32 [N]: the tokens that are seen, in order, at least one of each
        row, with the starts key_cu_seqlens int32 [B+1]."""
        qkv_TP = self.get_submodule(self.projection)(hidden_states)
        qkv_T3HK = qkv_TP.unflatten(-1, (3, self.num_heads, self.head_size))
        q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
        rows = (cu_seqlens, max_seqlen, position_bias)
        if attended is None:
            o_THK = self.attn(q_THK, k_THK, v_THK, *rows)
        else:
            k_NHK, v_NHK = qkv_T3HK[:, 1:].index_select(0, attended).unbind(1)
            o_THK = self.attn(q_THK, k_NHK, v_NHK, *rows, key_cu_seqlens)
        return self.out_proj(o_THK.flatten(1))


class PositionedAttention(nn.Module):
    def __init__(self, hidden_size: int, num_attention_heads: int, bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_attention_heads, hidden_size // num_attention_heads
        self.qk_proj = MergedColumnParallelLinear(hidden_size, [hidden_size, hidden_size], bias)
        self.v_proj = ColumnParallelLinear(hidden_size, hidden_size, bias)
        self.attn = DenseAttention(self.head_size**-0.5)
        self.o_proj = RowParallelLinear(hidden_size, hidden_size, bias)

    def forward(self, hidden_states: Tensor, position_embeddings: Tensor) -> Tensor:
        """hidden_states [B, S, D], position_embeddings the same or [S, D] -> [B, S, D]"""
        batch, length, _ = hidden_states.shape
        qk_BSP = self.qk_proj(hidden_states + position_embeddings)
        q_THK, k_THK = qk_BSP.view(batch * length, 2, self.num_heads, self.head_size).unbind(1)
        v_THK = self.v_proj(hidden_states).view(batch * length, self.num_heads, self.head_size)
        starts_B1 = torch.arange(batch + 1, dtype=torch.int32, device=v_THK.device) * length
        return self.o_proj(self.attn(q_THK, k_THK, v_THK, starts_B1, length).view(batch, length, -1))
