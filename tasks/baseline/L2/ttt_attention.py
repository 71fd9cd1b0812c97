"""Attention block over a window of a sequence that comes in chunks: project, normalise, rotate, store,
attend; and its gradient by the chunk.

    [q | k | v] = x Wqkv^T
    q, k = rope(rms_norm(q; w_q)), rope(rms_norm(k; w_k))             over each head, then by place
    key_cache[S - T + t], value_cache[S - T + t] = k[t], v[t]
    y = attention(q, key_cache, value_cache) Wo^T                     over the last W keys
    grad: do = dy Wo;  dq, dk, dv = attention_grad(do);  dx = [norm_grad(rope^-1(dq, dk)) | dv] Wqkv

T tokens, the last of the S whose keys and values the caches hold, D hidden, H heads, K head size, W keys of a
window; scale 1/sqrt(K). Keys and values of earlier chunks are constants, and so are the weights. A rotation
back is the one by the negative angle. Rounded to the dtype of x after each product, norm, rotation and
attention.
Mirrors the seq_modeling_block of a block of ttt.model.transformer.MetaModel, which caches keys before they
are rotated, by places that count from the first cached key: their differences, and so y, are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.diffusion_rope import ApplyRotaryEmbedding
from ..L1.linear_grad import LinearInputGrad
from ..L1.rms_norm import RMSNorm
from ..L1.rms_norm_grad import RMSNormGrad
from ..L1.sliding_attention import SlidingAttention, SlidingAttentionGrad
from .parallel_linear import QKVParallelLinear, RowParallelLinear


class TTTAttention(nn.Module):
    def __init__(
        self, hidden_size: int, num_heads: int, head_dim: int, sliding_window: int, rms_norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.heads = (3, num_heads, head_dim)
        self.qkv_proj = QKVParallelLinear(hidden_size, head_dim, num_heads, num_heads)
        self.q_norm, self.k_norm = (RMSNorm(head_dim, rms_norm_eps) for _ in range(2))
        self.rope = ApplyRotaryEmbedding()
        self.attn = SlidingAttention(head_dim, sliding_window)
        self.o_proj = RowParallelLinear(num_heads * head_dim, hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        rotary_emb: Tensor,
        key_cache: Tensor | None,
        value_cache: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """hidden_states [T, D], rotary_emb [T, K], caches [S, H, K], of which the last T are written -> y
        [T, D], and what the gradient needs: qkv [T, 3, H, K] and the rotated query [T, H, K]. Without caches
        the tokens see each other alone."""
        qkv_T3HK = self.qkv_proj(hidden_states).unflatten(-1, self.heads)
        q, k, v = qkv_T3HK.unbind(1)
        q_1THK, k_1THK = self.rope(self.q_norm(q)[None], self.k_norm(k)[None], rotary_emb)
        k = k_1THK[0]
        if key_cache is not None and value_cache is not None:
            key_cache[-len(k) :].copy_(k)
            value_cache[-len(k) :].copy_(v)
            k, v = key_cache, value_cache
        o_THK = self.attn(q_1THK[0], k, v)
        return self.o_proj(o_THK.flatten(1)), qkv_T3HK, q_1THK[0]


class TTTAttentionGrad(nn.Module):
    def __init__(
        self, hidden_size: int, num_heads: int, head_dim: int, sliding_window: int, rms_norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.heads = (num_heads, head_dim)
        size = num_heads * head_dim
        self.o_grad = LinearInputGrad(size, hidden_size)
        self.attn_grad = SlidingAttentionGrad(head_dim, sliding_window)
        self.rope = ApplyRotaryEmbedding()
        self.norm_grad = RMSNormGrad(rms_norm_eps)
        self.qkv_grad = LinearInputGrad(hidden_size, 3 * size)

    def forward(
        self,
        grad_output: Tensor,
        qkv: Tensor,
        query: Tensor,
        rotary_emb: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        qkv_weight: Tensor,
        q_norm_weight: Tensor,
        k_norm_weight: Tensor,
        o_weight: Tensor,
    ) -> Tensor:
        """grad_output [T, D], what the forward kept, rotary_emb [T, K], caches [S, H, K], weights [3 H K, D],
        [K], [K] and [D, H K] -> [T, D]"""
        do_THK = self.o_grad(grad_output, o_weight).unflatten(-1, self.heads)
        dq, dk, dv = self.attn_grad(do_THK, query, key_cache, value_cache)
        cos_TJ, sin_TJ = rotary_emb.chunk(2, dim=-1)
        dq_1THK, dk_1THK = self.rope(dq[None], dk[None], torch.cat((cos_TJ, -sin_TJ), dim=-1))
        q, k, _ = qkv.unbind(1)
        dq, dk = self.norm_grad(dq_1THK[0], q, q_norm_weight), self.norm_grad(dk_1THK[0], k, k_norm_weight)
        return self.qkv_grad(torch.stack((dq, dk, dv), dim=1).flatten(1), qkv_weight)
