"""One block of a diffusion transformer, conditioned by a vector of each request, or by its text alone.

    double    a = x + gate attention(n),  y = a + gate' mlp(layer_norm(a) (1 + scale') + shift')
              for image and text, each with its own weights; n = adaptive_norm(x, temb), one attention
    single    y = x + gate ([attention(n) | gelu_tanh(n Wm^T + bm)] Wo^T + bo)        x: text, then image
    text      a = x + attention(norm1(x)),  c = a + cross_attention(norm2(a), text),
              y = c + gelu_mlp(norm3(c))

B requests, L image and S text tokens of each, D hidden, F intermediate, J features of the text; gates, shift'
and scale' come from the adaptive norm. text: layer norms, heads of one size, an MLP with a gate (its
activation the exact gelu) of F = 4 D. Rounded to the dtype of x after each sum.
Mirrors diffusers.models.transformers.transformer_flux.FluxTransformerBlock and FluxSingleTransformerBlock,
diffusers.models.attention.BasicTransformerBlock with activation_fn geglu.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.fusion import Fusion, add_and_norm
from fastkernels.nn.modulation import continued, gated

from ..L1.activation import GELU
from ..L1.layer_norm import LayerNorm, ModulatedLayerNorm
from ..L2.adaptive_norm import AdaLayerNormZero, AdaLayerNormZeroSingle
from ..L2.diffusion_attention import CrossAttention, FluxJointAttention, FluxSingleAttention, SelfAttention
from ..L2.gated_mlp import GatedMLP
from ..L2.mlp import MLP
from ..L2.parallel_linear import ColumnParallelLinear, RowParallelLinear


class FluxTransformerBlock(nn.Module):
    def __init__(self, dim: int, intermediate_size: int, num_attention_heads: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm1 = AdaLayerNormZero(dim, eps)
        self.norm1_context = AdaLayerNormZero(dim, eps)
        self.attn = FluxJointAttention(dim, num_attention_heads, eps)
        self.norm2 = ModulatedLayerNorm(eps)
        self.ff = MLP(dim, intermediate_size, "gelu_tanh")
        self.norm2_context = ModulatedLayerNorm(eps)
        self.ff_context = MLP(dim, intermediate_size, "gelu_tanh")

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor,
        image_rotary_emb: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """hidden_states [B, L, D], encoder_hidden_states [B, S, D], temb [B, D], image_rotary_emb [S + L, K]
        -> text [B, S, D], image [B, L, D]: in this order"""
        n, *image_mlp = self.norm1(hidden_states, temb)
        text_n, *text_mlp = self.norm1_context(encoder_hidden_states, temb)
        o, text_o = self.attn(n, text_n, image_rotary_emb)
        image = continued(hidden_states, o, image_mlp, self.norm2, self.ff)
        text = continued(encoder_hidden_states, text_o, text_mlp, self.norm2_context, self.ff_context)
        return text, image


class FluxSingleTransformerBlock(nn.Module):
    def __init__(self, dim: int, intermediate_size: int, num_attention_heads: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = AdaLayerNormZeroSingle(dim, eps)
        self.attn = FluxSingleAttention(dim, num_attention_heads, eps)
        self.proj_mlp = ColumnParallelLinear(dim, intermediate_size, bias=True)
        self.act_mlp = GELU("tanh")
        self.proj_out = RowParallelLinear(dim + intermediate_size, dim, bias=True)

    def forward(self, hidden_states: Tensor, temb: Tensor, image_rotary_emb: Tensor) -> Tensor:
        """hidden_states [B, S + L, D], temb [B, D], image_rotary_emb [S + L, K] -> [B, S + L, D]"""
        n, gate_BD = self.norm(hidden_states, temb)
        o, m = self.attn(n, image_rotary_emb), self.act_mlp(self.proj_mlp(n))
        return gated(hidden_states, gate_BD, self.proj_out(torch.cat((o, m), dim=-1)))


class BasicTransformerBlock(nn.Module):
    def __init__(
        self, dim: int, num_attention_heads: int, cross_attention_dim: int, norm_eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim, norm_eps)
        self.attn1 = SelfAttention(dim, num_attention_heads)
        self.norm2 = LayerNorm(dim, norm_eps)
        self.attn2 = CrossAttention(dim, cross_attention_dim, num_attention_heads)
        self.norm3 = LayerNorm(dim, norm_eps)
        self.ff = GatedMLP(dim, 4 * dim, "gelu", bias=True)
        self.fuses = Fusion(self, "norm2", "norm3")

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """hidden_states [B, L, D], encoder_hidden_states [B, S, J] -> [B, L, D]"""
        seen_BLD = self.attn1(self.norm1(hidden_states))
        normed_BLD, a_BLD = add_and_norm(seen_BLD, hidden_states, self.norm2, self.fuses)
        read_BLD = self.attn2(normed_BLD, encoder_hidden_states)
        normed_BLD, c_BLD = add_and_norm(read_BLD, a_BLD, self.norm3, self.fuses)
        return c_BLD + self.ff(normed_BLD)
