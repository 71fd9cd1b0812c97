"""Sinusoidal features of a timestep, or of another number that conditions a model.

    y = [cos(v f[0]) .. cos(v f[D/2 - 1]) | sin(v f[0]) .. sin(v f[D/2 - 1])]        f[k] = period^(-2k/D)
    positions   y = [sin(v f[0]) .. | cos(v f[0]) ..]    f[k] = 10000^(-k/(D/2 - 1)), from 1 to 1/10000
    flow        y = [sin(v w[0]) .. | cos(v w[0]) ..]    w[k] = 2 pi / (p (q/p)^(2k/(D - 2))), periods p to q

B numbers, D features. v is float32 whatever the dtype of the model, and so is y; the angles are float64.
Mirrors diffusers.models.embeddings.Timesteps with flip_sin_to_cos=True and downscale_freq_shift=0,
diffusion_policy_3d.model.diffusion.positional_embedding.SinusoidalPosEmb and
transformers.models.pi0.modeling_pi0.PI0TimestepEmbeddings, whose angles are float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastkernels import kernels


class Timesteps(nn.Module):
    def __init__(self, num_channels: int, max_period: float = 10000.0) -> None:
        super().__init__()
        self.num_channels, self.max_period = num_channels, max_period

    def forward(self, timesteps: Tensor) -> Tensor:
        """float32 [B] -> float32 [B, D]"""
        return kernels.sinusoidal(timesteps, self.num_channels, self.max_period)


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        half = dim // 2
        self.period = 10000.0 ** (half / (half - 1))  # the kernel's last frequency is one short of 1/period

    def forward(self, x: Tensor) -> Tensor:
        """float32 [B] -> float32 [B, D]"""
        return kernels.sinusoidal(x, self.dim, self.period).roll(self.dim // 2, dims=-1)


class FlowTimesteps(nn.Module):
    def __init__(self, num_channels: int, min_period: float, max_period: float) -> None:
        super().__init__()
        self.num_channels, self.highest = num_channels, 2 * math.pi / min_period
        # The last of its D/2 frequencies is that of max_period: the kernel's would be one further on.
        self.ratio = (max_period / min_period) ** (num_channels / (num_channels - 2))

    def forward(self, time: Tensor) -> Tensor:
        """float32 [B] -> float32 [B, D]"""
        turned_BD = kernels.sinusoidal(time, self.num_channels, self.ratio, self.highest)
        cos_BJ, sin_BJ = turned_BD.chunk(2, dim=-1)
        return torch.cat((sin_BJ, cos_BJ), dim=-1)
