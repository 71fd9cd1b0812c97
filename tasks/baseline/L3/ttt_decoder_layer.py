"""One layer of a decoder with norms before and behind each half.

    a = h + rms_norm(attention(rms_norm(h; w_in)); w_behind)
    y = a + rms_norm(mlp(rms_norm(a; w_ffn)); w_ffn_behind)

T tokens of a sequence, D hidden, H heads, K head size; a token sees the last sliding_window tokens. Rounded
to the dtype of h after each norm and sum.
Mirrors a block of ttt.model.transformer.MetaModel without prime weights.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.rms_norm import RMSNorm
from ..L2.gated_mlp import GatedMLP
from ..L2.ttt_attention import TTTAttention


class TTTDecoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        head_dim: int,
        sliding_window: int,
        rms_norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.seq_norm = RMSNorm(hidden_size, rms_norm_eps)
        self.seq_modeling_block = TTTAttention(hidden_size, num_heads, head_dim, sliding_window, rms_norm_eps)
        self.seq_post_norm = RMSNorm(hidden_size, rms_norm_eps)
        self.ffn_norm = RMSNorm(hidden_size, rms_norm_eps)
        self.feed_forward = GatedMLP(hidden_size, intermediate_size)
        self.ffn_post_norm = RMSNorm(hidden_size, rms_norm_eps)

    def forward(self, hidden_states: Tensor, rotary_emb: Tensor) -> Tensor:
        """hidden_states [T, D], rotary_emb [T, K] -> [T, D]"""
        o, *_ = self.seq_modeling_block(self.seq_norm(hidden_states), rotary_emb, None, None)
        hidden_states = hidden_states + self.seq_post_norm(o)
        return hidden_states + self.ffn_post_norm(self.feed_forward(self.ffn_norm(hidden_states)))
