"""One layer of an encoder over packed rows, of audio clips, prompts or documents.

    a = x + attention(norm(x; w1, b1))        a = norm(x + attention(x); w1, b1)        post_norm
    y = a + mlp(norm(a; w2, b2))              y = norm(a + mlp(a); w2, b2)

T tokens of B rows of up to S tokens, D hidden, H heads, K head size. The default has layer norms and an MLP,
and is causal where that is asked for; t5 has RMS norms, a gated MLP and no biases, but a bias of its scores,
which are not scaled. Rounded to the dtype of x after each sum. In float16 y (of t5 a too) is cut to
+-(65504 - 1000), before it overflows; what post_norm returns is normed.
Mirrors vllm.model_executor.models.whisper.WhisperEncoderLayer (also transformers' CLIPEncoderLayer, less the
cut), as encoder transformers.models.t5.modeling_t5.T5Block and, post_norm, modeling_bert.BertLayer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.fusion import Fusion, add_and_norm, normed_sum

from ..L1.layer_norm import LayerNorm
from ..L1.rms_norm import RMSNorm
from ..L2.encoder_attention import EncoderAttention
from ..L2.gated_mlp import GatedMLP
from ..L2.mlp import MLP

# transformers' margin, so that the next layer's sums stay finite.
LARGEST_HALF = torch.finfo(torch.float16).max - 1000


class EncoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        hidden_act: str = "gelu",
        layer_norm_eps: float = 1e-5,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.self_attn_layer_norm = LayerNorm(hidden_size, layer_norm_eps)
        self.self_attn = EncoderAttention(hidden_size, num_heads, causal=causal)
        self.final_layer_norm = LayerNorm(hidden_size, layer_norm_eps)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)
        self.fuses = Fusion(self, "final_layer_norm")

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """hidden_states [T, D], cu_seqlens int32 [B+1] -> [T, D]"""
        attended_TD = self.self_attn(self.self_attn_layer_norm(hidden_states), cu_seqlens, max_seqlen)
        normed_TD, a_TD = add_and_norm(attended_TD, hidden_states, self.final_layer_norm, self.fuses)
        return _cut(a_TD + self.mlp(normed_TD))


class PostNormEncoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        hidden_act: str = "gelu",
        layer_norm_eps: float = 1e-12,
    ) -> None:
        super().__init__()
        self.self_attn = EncoderAttention(hidden_size, num_heads)
        self.self_attn_layer_norm = LayerNorm(hidden_size, layer_norm_eps)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)
        self.final_layer_norm = LayerNorm(hidden_size, layer_norm_eps)
        self.fuses = Fusion(self, "self_attn_layer_norm", "final_layer_norm")

    def forward(
        self,
        hidden_states: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        attended: Tensor | None = None,
        key_cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """hidden_states [T, D], cu_seqlens int32 [B+1] -> [T, D]. attended int32 [N], key_cu_seqlens int32
        [B+1]: the tokens that are seen (L2/encoder_attention); None: all."""
        seen = () if attended is None else (None, attended, key_cu_seqlens)
        attended_TD = self.self_attn(hidden_states, cu_seqlens, max_seqlen, *seen)
        a_TD = normed_sum(attended_TD, hidden_states, self.self_attn_layer_norm, self.fuses)
        return normed_sum(self.mlp(a_TD), a_TD, self.final_layer_norm, self.fuses)


class T5Block(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        head_size: int,
        hidden_act: str = "gelu_tanh",
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.self_attn_layer_norm = RMSNorm(hidden_size, eps)
        self.self_attn = EncoderAttention(hidden_size, num_heads, False, head_size, scaled=False)
        self.final_layer_norm = RMSNorm(hidden_size, eps)
        self.mlp = GatedMLP(hidden_size, intermediate_size, hidden_act)

    def forward(
        self, hidden_states: Tensor, position_bias: Tensor, cu_seqlens: Tensor, max_seqlen: int
    ) -> Tensor:
        """hidden_states [T, D], position_bias [H, S, S], S at least that of the longest row, cu_seqlens
        int32 [B+1] -> [T, D]"""
        normed_TD = self.self_attn_layer_norm(hidden_states)
        attended_TD = self.self_attn(normed_TD, cu_seqlens, max_seqlen, position_bias)
        a_TD = _cut(hidden_states + attended_TD)
        return _cut(a_TD + self.mlp(self.final_layer_norm(a_TD)))


def _cut(x_TD: Tensor) -> Tensor:
    return x_TD.clamp(-LARGEST_HALF, LARGEST_HALF) if x_TD.dtype == torch.float16 else x_TD
