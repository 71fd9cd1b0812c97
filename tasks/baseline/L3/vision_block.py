"""One pre-norm layer of a vision transformer over packed images.

    a = x + attention(layer_norm(x; w1, b1))
    y = a + mlp(layer_norm(a; w2, b2))

T tokens of B images, D hidden. Rounded to the dtype of x after each sum.
Mirrors vllm.model_executor.models.siglip2.Siglip2EncoderLayer (also transformers' Siglip2EncoderLayer, timm's
vision_transformer.Block).
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels.nn.fusion import Fusion, add_and_norm

from ..L1.layer_norm import LayerNorm
from ..L2.encoder_attention import EncoderAttention
from ..L2.mlp import MLP


class VisionBlock(nn.Module):
    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, hidden_act: str, layer_norm_eps: float
    ) -> None:
        super().__init__()
        self.layer_norm1 = LayerNorm(hidden_size, layer_norm_eps)
        self.self_attn = EncoderAttention(hidden_size, num_heads)
        self.layer_norm2 = LayerNorm(hidden_size, layer_norm_eps)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)
        self.fuses = Fusion(self, "layer_norm2")

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """hidden_states [T, D], cu_seqlens int32 [B+1] -> [T, D]"""
        attended_TD = self.self_attn(self.layer_norm1(hidden_states), cu_seqlens, max_seqlen)
        normed_TD, a_TD = add_and_norm(attended_TD, hidden_states, self.layer_norm2, self.fuses)
        return a_TD + self.mlp(normed_TD)
