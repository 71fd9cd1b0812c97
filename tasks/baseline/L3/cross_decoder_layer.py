"""One pre-norm layer of a decoder that listens to an encoder.

    a = x + self_attention(layer_norm(x; w1, b1))
    c = a + cross_attention(layer_norm(a; w2, b2), e)
    y = c + mlp(layer_norm(c; w3, b3))

T tokens, D hidden, A requests that begin in the step with S encoder states e each. Rounded to the dtype of x
after each sum.
Mirrors vllm.model_executor.models.whisper.WhisperDecoderLayer.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels.nn.fusion import Fusion, add_and_norm

from ..L1.layer_norm import LayerNorm
from ..L2.decoder_attention import DecoderCrossAttention, DecoderSelfAttention
from ..L2.mlp import MLP


class CrossDecoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        max_source_positions: int,
        hidden_act: str = "gelu",
    ) -> None:
        super().__init__()
        self.self_attn_layer_norm = LayerNorm(hidden_size)
        self.self_attn = DecoderSelfAttention(hidden_size, num_heads)
        self.encoder_attn_layer_norm = LayerNorm(hidden_size)
        self.encoder_attn = DecoderCrossAttention(hidden_size, num_heads, max_source_positions)
        self.final_layer_norm = LayerNorm(hidden_size)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)
        self.fuses = Fusion(self, "encoder_attn_layer_norm", "final_layer_norm")

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        """hidden_states [T, D], encoder_hidden_states [A*S, D] of the requests that begin (None: none)
        -> [T, D]"""
        attended_TD = self.self_attn(self.self_attn_layer_norm(hidden_states))
        normed_TD, a_TD = add_and_norm(attended_TD, hidden_states, self.encoder_attn_layer_norm, self.fuses)
        heard_TD = self.encoder_attn(normed_TD, encoder_hidden_states)
        normed_TD, c_TD = add_and_norm(heard_TD, a_TD, self.final_layer_norm, self.fuses)
        return c_TD + self.mlp(normed_TD)
