"""The net that denoises a trajectory of actions: a U-Net over time whose blocks are modulated.

    h_0 = x^T;  d_i = blocks(h_i),  h_{i+1} = down(d_i)    i over down_dims; the last level keeps its frames
    u = blocks(d_last);  u = up(blocks([u | d_i]))         i from the last level down to 1: one level fewer
    y = (conv(c(u)))^T                                     c: convolution, group norm, Mish

B requests, T frames, A features of an action, M modulations: scale and shift of each block's channels, in the
order in which blocks run. A level halves the frames by a convolution of stride 2, or doubles them by a
transposed one. The first level's d_0 goes no other way than down. Rounded as its blocks say (L2/film_block).
Mirrors diffusion_policy_3d.model.diffusion.conditional_unet1d.ConditionalUnet1D (blocks_per_stage=1:
simple_conditional_unet1d.ConditionalUnet1D), whose forward makes the modulations of timestep and global_cond
(L2/timestep_embedding:film).
"""

from __future__ import annotations

from itertools import pairwise, zip_longest

import torch
from torch import Tensor, nn

from ..L1.conv1d import Conv1d, ConvTranspose1d
from ..L2.film_block import ConditionalResidualBlock1D, Conv1dBlock


def block_channels(input_dim: int, down_dims: list[int], blocks: int) -> list[list[tuple[int, int]]]:
    """Input and output channels of the blocks of each stage: levels down, the middle, levels up."""
    down = list(pairwise((input_dim, *down_dims)))
    middle = (down_dims[-1], down_dims[-1])
    up = [(2 * wide, narrow) for narrow, wide in reversed(down[1:])]
    return [
        [(inputs if block == 0 else outputs, outputs) for block in range(blocks)]
        for inputs, outputs in (*down, middle, *up)
    ]


class ConditionalUnet1D(nn.Module):
    def __init__(
        self,
        input_dim: int,
        down_dims: list[int],
        kernel_size: int = 3,
        n_groups: int = 8,
        blocks_per_stage: int = 2,
    ) -> None:
        super().__init__()
        stages = block_channels(input_dim, down_dims, blocks_per_stage)
        self.film_sizes = [2 * outputs for stage in stages for _, outputs in stage]
        levels = [
            nn.ModuleList(ConditionalResidualBlock1D(*channels, kernel_size, n_groups) for channels in stage)
            for stage in stages
        ]
        bottom = len(down_dims)
        self.down_modules, self.up_modules = (
            nn.ModuleList(levels[:bottom]),
            nn.ModuleList(levels[bottom + 1 :]),
        )
        self.mid_modules = levels[bottom]
        self.downsamples = nn.ModuleList(Conv1d(dim, dim, 3, 2, 1) for dim in down_dims[:-1])
        self.upsamples = nn.ModuleList(ConvTranspose1d(dim, dim, 4, 2, 1) for dim in down_dims[-2::-1])
        self.final_block = Conv1dBlock(down_dims[0], down_dims[0], kernel_size, n_groups)
        self.final_conv = Conv1d(down_dims[0], input_dim, 1)

    def forward(self, sample: Tensor, film: Tensor) -> Tensor:
        """sample [B, T, A], film [B, M] -> [B, T, A]"""
        films = iter(film.split(self.film_sizes, dim=-1))
        x, skips = sample.transpose(1, 2), []
        for blocks, downsample in zip_longest(self.down_modules, self.downsamples):
            for block in blocks:
                x = block(x, next(films))
            skips.append(x)
            if downsample is not None:
                x = downsample(x)
        for block in self.mid_modules:
            x = block(x, next(films))
        for blocks, upsample in zip(self.up_modules, self.upsamples):
            x = torch.cat((x, skips.pop()), 1)
            for block in blocks:
                x = block(x, next(films))
            x = upsample(x)
        return self.final_conv(self.final_block(x)).transpose(1, 2)
