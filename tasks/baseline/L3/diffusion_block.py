"""One block of a diffusion transformer, conditioned by a vector of each request.

    double    a = x + gate attention(n),  y = a + gate' mlp(layer_norm(a) (1 + scale') + shift')
              for image and text, each with its own weights; n = adaptive_norm(x, temb), one attention
    single    y = x + gate ([attention(n) | gelu_tanh(n Wm^T + bm)] Wo^T + bo)        x: text, then image

B requests, L image and S text tokens of each, D hidden, F intermediate; gates, shift' and scale' come from
the adaptive norm. Rounded to the dtype of x after each sum.
Mirrors diffusers.models.transformers.transformer_flux.FluxTransformerBlock and FluxSingleTransformerBlock.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.modulation import continued, gated

from ..L1.activation import GELU
from ..L1.layer_norm import ModulatedLayerNorm
from ..L2.adaptive_norm import AdaLayerNormZero, AdaLayerNormZeroSingle
from ..L2.diffusion_attention import FluxJointAttention, FluxSingleAttention
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
