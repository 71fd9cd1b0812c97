"""One block of a diffusion transformer, conditioned by a vector of each request.

    double    a = x + gate attention(n),  y = a + gate' mlp(layer_norm(a) (1 + scale') + shift')
              for image and text, each with its own weights; n = adaptive_norm(x, temb), one attention
    single    y = x + gate ([attention(n) | gelu_tanh(n Wm^T + bm)] Wo^T + bo)        x: text, then image
    spatiotemporal    y = temporal(spatial(x)), each a half like `double` without text, with its own weights

B requests, L image and S text tokens of each, D hidden, F intermediate; gates, shift' and scale' come from
the adaptive norm. Spatiotemporal: B clips, T new frames of L tokens, the last of S frames; a frame's tokens
share its vector. Rounded to the dtype of x after each sum.
Mirrors diffusers.models.transformers.transformer_flux.FluxTransformerBlock, FluxSingleTransformerBlock and
dit.SpatioTemporalDiTBlock of open-oasis.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.activation import GELU
from ..L1.layer_norm import ModulatedLayerNorm
from ..L2.adaptive_norm import AdaLayerNormZero, AdaLayerNormZeroSingle
from ..L2.diffusion_attention import (
    FluxJointAttention,
    FluxSingleAttention,
    SpatialAxialAttention,
    TemporalAxialAttention,
)
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
        image = _continued(hidden_states, o, image_mlp, self.norm2, self.ff)
        text = _continued(encoder_hidden_states, text_o, text_mlp, self.norm2_context, self.ff_context)
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
        return _gated(hidden_states, gate_BD, self.proj_out(torch.cat((o, m), dim=-1)))


class SpatioTemporalDiTBlock(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.s_norm1 = AdaLayerNormZero(hidden_size, eps)
        self.s_attn = SpatialAxialAttention(hidden_size, num_heads)
        self.s_norm2 = ModulatedLayerNorm(eps)
        self.s_mlp = MLP(hidden_size, intermediate_size, "gelu_tanh")
        self.t_norm1 = AdaLayerNormZero(hidden_size, eps)
        self.t_attn = TemporalAxialAttention(hidden_size, num_heads)
        self.t_norm2 = ModulatedLayerNorm(eps)
        self.t_mlp = MLP(hidden_size, intermediate_size, "gelu_tanh")

    def forward(
        self,
        x: Tensor,
        c: Tensor,
        spatial_rotary_emb: Tensor,
        temporal_rotary_emb: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
    ) -> Tensor:
        """x [B, T, L, D], c [B, T, D], rotations [L, K] and [T, K], caches [B L, S, H, K], of whose frames
        the last T are written -> [B, T, L, D]"""
        clips, (x_FLD, c_FD) = x.shape[0], (part.flatten(0, 1) for part in (x, c))
        n, *modulation = self.s_norm1(x_FLD, c_FD)
        o = self.s_attn(n, spatial_rotary_emb)
        x_FLD = _continued(x_FLD, o, modulation, self.s_norm2, self.s_mlp)
        n, *modulation = self.t_norm1(x_FLD, c_FD)
        o = self.t_attn(n.unflatten(0, (clips, -1)), temporal_rotary_emb, key_cache, value_cache)
        x_FLD = _continued(x_FLD, o.flatten(0, 1), modulation, self.t_norm2, self.t_mlp)
        return x_FLD.unflatten(0, (clips, -1))


def _continued(x: Tensor, o: Tensor, modulation: list[Tensor], norm: nn.Module, mlp: nn.Module) -> Tensor:
    """What one stream does after the attention."""
    gate, mlp_shift, mlp_scale, mlp_gate = modulation
    a = _gated(x, gate, o)
    return _gated(a, mlp_gate, mlp(norm(a, mlp_scale, mlp_shift)))


def _gated(x_BLD: Tensor, gate_BD: Tensor, change_BLD: Tensor) -> Tensor:
    """x + gate change, in one pass and rounded once."""
    return torch.addcmul(x_BLD, gate_BD.unsqueeze(1), change_BLD)
