"""Attention of vision transformers: over all tokens of each image, with rotary positions, or pooled.

    rotary    [q | k | v] = x Wqkv^T + b,  (q, k) = rope(q, k)
              y = attention(q, k, v) Wo^T + bo
    pool      q = p Wq^T + bq,  [k | v] = x Wkv^T + bkv
              a = attention(q, k, v) Wo^T + bo
              y = a + mlp(layer_norm(a))

T tokens of B images, D hidden, H heads, K = D / H head size, p a learned query (probe); scale 1/sqrt(K).
Rotary positions are those of patches on two axes (`rope` axial: L1/axial_rope, b = 0) or of a video's on
three (video: L1/video_rope). Rounded to the dtype of x after each product, rotation and norm, after the
attention and the sum.
Mirrors transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTAttention (timm: layers.AttentionRope),
transformers.models.vjepa2.modeling_vjepa2.VJEPA2RopeAttention, and
transformers.models.siglip2.modeling_siglip2.Siglip2MultiheadAttentionPoolingHead (timm:
layers.AttentionPoolLatent).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.axial_rope import ApplyAxialRope
from ..L1.dense_attention import DenseAttention, PooledAttention
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.video_rope import ApplyVideoRope
from .mlp import MLP
from .parallel_linear import QKVParallelLinear, RowParallelLinear

ROPES = {"axial": ApplyAxialRope, "video": ApplyVideoRope}


class RotaryAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, qkv_bias: bool = False, rope: str = "axial") -> None:
        super().__init__()
        if rope not in ROPES:
            raise ValueError(f"rope must be one of {', '.join(ROPES)}, not {rope!r}")
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.qkv_proj = QKVParallelLinear(hidden_size, self.head_size, num_heads, num_heads, qkv_bias)
        self.rope = ROPES[rope]()
        self.attn = DenseAttention(self.head_size**-0.5)
        self.o_proj = RowParallelLinear(hidden_size, hidden_size, bias=True)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
    ) -> Tensor:
        """hidden_states [T, D], position_embeddings [P, K], positions int64 [T], cu_seqlens int32 [B+1] ->
        [T, D]"""
        qkv_T3HK = self.qkv_proj(hidden_states).unflatten(-1, (3, self.num_heads, self.head_size))
        q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
        q_THK, k_THK = self.rope(q_THK, k_THK, position_embeddings, positions)
        o_THK = self.attn(q_THK, k_THK, v_THK, cu_seqlens, max_seqlen)
        return self.o_proj(o_THK.flatten(1))


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
