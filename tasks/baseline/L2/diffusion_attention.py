"""Attention of a diffusion model: all tokens of a request, those of its text first, see each other, or the
tokens of a frame; or those of an image see each other, or the text.

    [q | k | v] = x Wqkv^T + b        image and text have their own weights where they are two streams
    q = rope(rms_norm(q; wq)),  k = rope(rms_norm(k; wk))        each head on its own
    o = attention(q, k, v)            over [text | image]
    joint     y_image = o_image Wo^T + bo,  y_text = o_text Wa^T + ba
    single    y = o
    spatial   q, k = rope(q), rope(k),  y = attention(q, k, v) Wo^T + bo        over a frame
    self      y = attention(q, k, v) Wo^T + bo
    cross     q = x Wq^T,  [k | v] = s Wkv^T,  y = attention(q, k, v) Wo^T + bo        s: features of the text

B requests, L image and S text tokens of each, D hidden, J features of text, H heads, K = D / H head size;
scale 1/sqrt(K). self and cross have a bias in their last product alone. Rounded to the dtype of x after each
product, norm and rotation, and after the attention.
Mirrors diffusers.models.transformers.transformer_flux.FluxAttention, and of open-oasis
attention.SpatialAxialAttention and, with a bias, vae.Attention; self and cross:
diffusers.models.attention_processor.Attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.dense_attention import CrossDenseAttention, DenseAttention
from ..L1.diffusion_rope import ApplyRotaryEmbedding
from ..L1.linear import Linear
from ..L1.rms_norm import RMSNorm
from .parallel_linear import QKVParallelLinear, RowParallelLinear


class FluxJointAttention(nn.Module):
    def __init__(self, query_dim: int, heads: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.num_heads, self.head_size = heads, query_dim // heads
        self.qkv_proj = QKVParallelLinear(query_dim, self.head_size, heads, heads, bias=True)
        self.norm_q, self.norm_k = RMSNorm(self.head_size, eps), RMSNorm(self.head_size, eps)
        self.add_qkv_proj = QKVParallelLinear(query_dim, self.head_size, heads, heads, bias=True)
        self.norm_added_q, self.norm_added_k = RMSNorm(self.head_size, eps), RMSNorm(self.head_size, eps)
        self.rope = ApplyRotaryEmbedding()
        self.attn = DenseAttention(self.head_size**-0.5)
        self.to_out = RowParallelLinear(query_dim, query_dim, bias=True)
        self.to_add_out = RowParallelLinear(query_dim, query_dim, bias=True)

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, image_rotary_emb: Tensor
    ) -> tuple[Tensor, Tensor]:
        """hidden_states [B, L, D], encoder_hidden_states [B, S, D], image_rotary_emb [S + L, K] ->
        image [B, L, D], text [B, S, D]"""
        heads = (3, self.num_heads, self.head_size)
        q, k, v = self.qkv_proj(hidden_states).unflatten(-1, heads).unbind(2)
        text_q, text_k, text_v = self.add_qkv_proj(encoder_hidden_states).unflatten(-1, heads).unbind(2)
        q_BTHK = torch.cat((self.norm_added_q(text_q), self.norm_q(q)), dim=1)
        k_BTHK = torch.cat((self.norm_added_k(text_k), self.norm_k(k)), dim=1)
        v_BTHK = torch.cat((text_v, v), dim=1)
        q_BTHK, k_BTHK = self.rope(q_BTHK, k_BTHK, image_rotary_emb)
        o_BTD = _attend(self.attn, q_BTHK, k_BTHK, v_BTHK)
        text, image = o_BTD.split((encoder_hidden_states.shape[1], hidden_states.shape[1]), dim=1)
        return self.to_out(image), self.to_add_out(text)


class FluxSingleAttention(nn.Module):
    def __init__(self, query_dim: int, heads: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.num_heads, self.head_size = heads, query_dim // heads
        self.qkv_proj = QKVParallelLinear(query_dim, self.head_size, heads, heads, bias=True)
        self.norm_q, self.norm_k = RMSNorm(self.head_size, eps), RMSNorm(self.head_size, eps)
        self.rope = ApplyRotaryEmbedding()
        self.attn = DenseAttention(self.head_size**-0.5)

    def forward(self, hidden_states: Tensor, image_rotary_emb: Tensor) -> Tensor:
        """hidden_states [B, S + L, D], image_rotary_emb [S + L, K] -> [B, S + L, D]"""
        qkv_BT3HK = self.qkv_proj(hidden_states).unflatten(-1, (3, self.num_heads, self.head_size))
        q, k, v = qkv_BT3HK.unbind(2)
        q_BTHK, k_BTHK = self.rope(self.norm_q(q), self.norm_k(k), image_rotary_emb)
        return _attend(self.attn, q_BTHK, k_BTHK, v)


class SpatialAxialAttention(nn.Module):
    def __init__(self, dim: int, heads: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_size = heads, dim // heads
        self.qkv_proj = QKVParallelLinear(dim, self.head_size, heads, heads, bias=qkv_bias)
        self.rope = ApplyRotaryEmbedding()
        self.attn = DenseAttention(self.head_size**-0.5)
        self.to_out = RowParallelLinear(dim, dim, bias=True)

    def forward(self, x: Tensor, rotary_emb: Tensor) -> Tensor:
        """x [B, L, D], rotary_emb [L, K] -> [B, L, D]"""
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.num_heads, self.head_size)).unbind(2)
        q, k = self.rope(q, k, rotary_emb)
        return self.to_out(_attend(self.attn, q, k, v))


class SelfAttention(nn.Module):
    def __init__(self, query_dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = heads, query_dim // heads
        self.to_qkv = Linear(query_dim, 3 * query_dim)
        self.attn = DenseAttention(self.head_size**-0.5)
        self.to_out = Linear(query_dim, query_dim, bias=True)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [B, L, D] -> [B, L, D]"""
        q, k, v = self.to_qkv(hidden_states).unflatten(-1, (3, self.num_heads, self.head_size)).unbind(2)
        return self.to_out(_attend(self.attn, q, k, v))


class CrossAttention(nn.Module):
    def __init__(self, query_dim: int, cross_attention_dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = heads, query_dim // heads
        self.to_q = Linear(query_dim, query_dim)
        self.to_kv = Linear(cross_attention_dim, 2 * query_dim)
        self.attn = CrossDenseAttention(self.head_size**-0.5)
        self.to_out = Linear(query_dim, query_dim, bias=True)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """hidden_states [B, L, D], encoder_hidden_states [B, S, J] -> [B, L, D]"""
        heads = (self.num_heads, self.head_size)
        k, v = self.to_kv(encoder_hidden_states).unflatten(-1, (2, *heads)).unbind(2)
        return self.to_out(self.attn(self.to_q(hidden_states).unflatten(-1, heads), k, v).flatten(2))


def _attend(attention: nn.Module, q_BTHK: Tensor, k_BTHK: Tensor, v_BTHK: Tensor) -> Tensor:
    """[B, T, H K]: requests of one length are packed rows."""
    requests, length = q_BTHK.shape[:2]
    starts_B1 = torch.arange(0, (requests + 1) * length, length, dtype=torch.int32, device=q_BTHK.device)
    packed = (x.flatten(0, 1) for x in (q_BTHK, k_BTHK, v_BTHK))
    return attention(*packed, starts_B1, length).view(requests, length, -1)
