"""Residual block of a net over actions, modulated by what conditions it (feature-wise linear modulation).

    conv       c(x) = mish(group_norm(conv(x)))
    default    y = c_2(s c_1(x) + b) + r(x)            s, b: the two halves of cond; s is no gain beside 1

B requests, C input and O output channels, T frames. The convolutions of c keep T frames; r is x itself, or a
convolution with one tap where O is not C. All have a bias. Rounded to the dtype of x after each convolution
and after each norm with what follows it.
Mirrors diffusion_policy_3d.model.diffusion.conv1d_components.Conv1dBlock and, without the `cond_encoder` that
makes cond of timestep and observation,
diffusion_policy_3d.model.diffusion.conditional_unet1d.ConditionalResidualBlock1D.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.conv1d import Conv1d
from ..L1.group_norm import GroupNormFilm


class Conv1dBlock(nn.Module):
    def __init__(self, inp_channels: int, out_channels: int, kernel_size: int, n_groups: int = 8) -> None:
        super().__init__()
        self.conv = Conv1d(inp_channels, out_channels, kernel_size, padding=kernel_size // 2)
        self.norm = GroupNormFilm(n_groups, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, O, T]"""
        return self.norm(self.conv(x))


class ConditionalResidualBlock1D(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 3, n_groups: int = 8) -> None:
        super().__init__()
        padding = kernel_size // 2
        self.conv1 = Conv1d(in_channels, out_channels, kernel_size, padding=padding)
        self.norm1 = GroupNormFilm(n_groups, out_channels)
        self.conv2 = Conv1d(out_channels, out_channels, kernel_size, padding=padding)
        self.norm2 = GroupNormFilm(n_groups, out_channels)
        self.residual_conv = Conv1d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """x [B, C, T], cond [B, 2 O] -> [B, O, T]"""
        scale, shift = cond.chunk(2, dim=-1)
        y = self.norm1(self.conv1(x), scale, shift)
        residual = x if self.residual_conv is None else self.residual_conv(x)
        return self.norm2(self.conv2(y), residual=residual)
