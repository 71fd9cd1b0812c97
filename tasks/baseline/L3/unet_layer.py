"""One layer of a U-Net over latents that is told the timestep and reads a text.

    default        r = resnet([x | s], t),  y = transformer(r, text)        s: what the way down kept
    transformer    y = x + (block_n(.. block_1(group_norm(x) Wi^T + bi))) Wo^T + bo

B images, Y, X rows and columns, C input and O output channels; on the way up s has S of the C channels, on
the way down and in the middle there is none. t has D features of the timestep, a text N tokens of J features.
A level without transformer_layers ends with its resnet. Pixels are tokens row by row. Rounded to the dtype of
x after each product, norm and sum.
Mirrors what diffusers.models.unets.unet_2d_blocks.CrossAttnDownBlock2D and CrossAttnUpBlock2D repeat, and
diffusers.models.transformers.transformer_2d.Transformer2DModel with use_linear_projection.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.group_norm import GroupNorm
from ..L1.linear import Linear
from ..L2.resnet_block import TimedResnetBlock2D
from .diffusion_block import BasicTransformerBlock

EPS, NORM_EPS = 1e-5, 1e-6  # of the resnet's norms, and of the one before the blocks


class Transformer2DModel(nn.Module):
    def __init__(
        self,
        in_channels: int,
        num_attention_heads: int,
        num_layers: int,
        cross_attention_dim: int,
        norm_num_groups: int = 32,
    ) -> None:
        super().__init__()
        self.norm = GroupNorm(norm_num_groups, in_channels, NORM_EPS)
        self.proj_in = Linear(in_channels, in_channels, bias=True)
        self.transformer_blocks = nn.ModuleList(
            BasicTransformerBlock(in_channels, num_attention_heads, cross_attention_dim)
            for _ in range(num_layers)
        )
        self.proj_out = Linear(in_channels, in_channels, bias=True)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """hidden_states [B, Y, X, C], encoder_hidden_states [B, N, J] -> [B, Y, X, C]"""
        h_BLC = self.proj_in(self.norm(hidden_states).flatten(1, 2))
        for block in self.transformer_blocks:
            h_BLC = block(h_BLC, encoder_hidden_states)
        return hidden_states + self.proj_out(h_BLC).view(hidden_states.shape)


class UNetLayer2D(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        temb_channels: int,
        transformer_layers: int,
        num_attention_heads: int,
        cross_attention_dim: int,
        norm_num_groups: int = 32,
    ) -> None:
        super().__init__()
        self.resnet = TimedResnetBlock2D(in_channels, out_channels, temb_channels, norm_num_groups, EPS)
        self.attention = (
            Transformer2DModel(
                out_channels, num_attention_heads, transformer_layers, cross_attention_dim, norm_num_groups
            )
            if transformer_layers
            else None
        )

    def forward(
        self, hidden_states: Tensor, temb: Tensor, encoder_hidden_states: Tensor, skip: Tensor | None = None
    ) -> Tensor:
        """hidden_states [B, Y, X, C - S], temb [B, D], encoder_hidden_states [B, N, J], skip [B, Y, X, S] or
        None -> [B, Y, X, O]"""
        joined = hidden_states if skip is None else torch.cat((hidden_states, skip), dim=-1)
        h = self.resnet(joined, temb)
        return h if self.attention is None else self.attention(h, encoder_hidden_states)
