"""Sinusoidal features of a timestep, or of another number that conditions a model.

    y = [cos(v f[0]) .. cos(v f[D/2 - 1]) | sin(v f[0]) .. sin(v f[D/2 - 1])]        f[k] = period^(-2k/D)
    y = [sin(v f[0]) .. | cos(v f[0]) ..]        positions: f[k] = 10000^(-k/(D/2 - 1)), from 1 to 1/10000

B numbers, D features. v is float32 whatever the dtype of the model, and so is y; the angles are float64.
Mirrors diffusers.models.embeddings.Timesteps with flip_sin_to_cos=True and downscale_freq_shift=0, and
diffusion_policy_3d.model.diffusion.positional_embedding.SinusoidalPosEmb.
"""

from __future__ import annotations

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
