"""Decoder of an image autoencoder: latents to pixels, eight times as many rows and columns.

    default     y = conv_out(silu(group_norm(up_n(.. up_1(mid(conv_in(z)))))))
    mid         y = resnet(attention(resnet(x)))
    up          y = upsample(resnet_n(.. resnet_1(x)))        the last block does not upsample

B images, Y, X rows and columns of latents, C latent channels, P output channels; block_out_channels are those
of the blocks from pixels to latents, so the decoder goes through them backwards. Rounded to the dtype of z
after each activation, convolution, attention and sum.
Mirrors diffusers.models.autoencoders.vae.Decoder, diffusers.models.unets.unet_2d_blocks.UNetMidBlock2D and
diffusers.models.unets.unet_2d_blocks.UpDecoderBlock2D.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.conv import Conv2d
from ..L1.group_norm import GroupNorm
from ..L2.conv_attention import ResidualAttention
from ..L2.resnet_block import ResnetBlock2D, Upsample2D

EPS = 1e-6


class UNetMidBlock2D(nn.Module):
    def __init__(self, in_channels: int, resnet_groups: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            ResnetBlock2D(in_channels, in_channels, resnet_groups, EPS) for _ in range(2)
        )
        self.attention = ResidualAttention(in_channels, resnet_groups, EPS)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [B, Y, X, C] -> [B, Y, X, C]"""
        before, after = self.resnets
        return after(self.attention(before(hidden_states)))


class UpDecoderBlock2D(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_layers: int,
        resnet_groups: int,
        add_upsample: bool = True,
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            ResnetBlock2D(in_channels if i == 0 else out_channels, out_channels, resnet_groups, EPS)
            for i in range(num_layers)
        )
        self.upsampler = Upsample2D(out_channels) if add_upsample else None

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [B, Y, X, C] -> [B, 2 Y, 2 X, O]; without the upsampler [B, Y, X, O]"""
        for resnet in self.resnets:
            hidden_states = resnet(hidden_states)
        return hidden_states if self.upsampler is None else self.upsampler(hidden_states)


class Decoder(nn.Module):
    def __init__(
        self,
        in_channels: int,
        block_out_channels: list[int],
        layers_per_block: int,
        norm_num_groups: int,
        out_channels: int = 3,
    ) -> None:
        super().__init__()
        widths = block_out_channels[::-1]
        self.conv_in = Conv2d(in_channels, widths[0], 3, padding=1)
        self.mid_block = UNetMidBlock2D(widths[0], norm_num_groups)
        self.up_blocks = nn.ModuleList(
            UpDecoderBlock2D(
                before, after, layers_per_block + 1, norm_num_groups, add_upsample=i + 1 < len(widths)
            )
            for i, (before, after) in enumerate(zip([widths[0], *widths], widths))
        )
        self.conv_norm_out = GroupNorm(norm_num_groups, widths[-1], EPS, "silu")
        self.conv_out = Conv2d(widths[-1], out_channels, 3, padding=1)

    def forward(self, sample: Tensor) -> Tensor:
        """sample [B, Y, X, C] -> [B, 8 Y, 8 X, P] with four blocks, twice as many for each more"""
        x = self.mid_block(self.conv_in(sample))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(self.conv_norm_out(x))
