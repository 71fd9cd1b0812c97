"""One pre-norm layer of a speech encoder over packed clips.

    a = x + attention(layer_norm(x; w1, b1))
    y = a + mlp(layer_norm(a; w2, b2))            float16: cut to +-(65504 - 1000), before it overflows

T tokens of B clips, D hidden. Rounded to the dtype of x after each sum.
Mirrors vllm.model_executor.models.whisper.WhisperEncoderLayer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.layer_norm import LayerNorm
from ..L2.encoder_attention import EncoderAttention
from ..L2.mlp import MLP

# transformers' margin, so that the next layer's sums stay finite.
LARGEST_HALF = torch.finfo(torch.float16).max - 1000


class EncoderLayer(nn.Module):
    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, activation: str = "gelu"
    ) -> None:
        super().__init__()
        self.self_attn_layer_norm = LayerNorm(hidden_size)
        self.self_attn = EncoderAttention(hidden_size, num_heads)
        self.final_layer_norm = LayerNorm(hidden_size)
        self.mlp = MLP(hidden_size, intermediate_size, activation)

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """hidden_states [T, D], cu_seqlens int32 [B+1] -> [T, D]"""
        normed_TD = self.self_attn_layer_norm(hidden_states)
        a_TD = hidden_states + self.self_attn(normed_TD, cu_seqlens, max_seqlen)
        y_TD = a_TD + self.mlp(self.final_layer_norm(a_TD))
        return y_TD.clamp(-LARGEST_HALF, LARGEST_HALF) if y_TD.dtype == torch.float16 else y_TD
