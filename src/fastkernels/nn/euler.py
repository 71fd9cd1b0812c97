"""Euler's method for a model that predicts the noise in its input, and classifier-free guidance.

    b_t = (sqrt(b_0) + t / (M - 1) (sqrt(b_1) - sqrt(b_0)))^2,  a_t = prod_{i <= t} (1 - b_i)      M timesteps
    s(t) = sqrt((1 - a_t) / a_t)                                              noise beside one part of image
    t_i = (N - 1 - i) (M // N) + offset,  s_i = s(t_i),  s_N = 0              i = 0 .. N - 1, of N steps
    x_0 = sqrt(s_0^2 + 1) noise
    e = e_u + g (e_c - e_u)                                               guided: without and with a prompt
    x_{i+1} = x_i + (s_{i+1} - s_i) e(x_i / sqrt(s_i^2 + 1), t_i)

Levels are float64 on the host; what a step computes is float32, and rounded once to the dtype of x. This is
the mathematics of diffusers' EulerDiscreteScheduler with timestep_spacing "leading".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels.nn.config import ConfigReader

_OTHER_MATHEMATICS = (
    "rescale_betas_zero_snr",
    "trained_betas",
    "use_beta_sigmas",
    "use_exponential_sigmas",
    "use_karras_sigmas",
)
# What another name of a choice would change.
_CHOICES = {
    "_class_name": "EulerDiscreteScheduler",
    "beta_schedule": "scaled_linear",
    "final_sigmas_type": "zero",
    "interpolation_type": "linear",
    "prediction_type": "epsilon",
    "timestep_spacing": "leading",
    "timestep_type": "discrete",
}


@dataclass(frozen=True, slots=True)
class Schedule:
    beta_start: float = 0.00085
    beta_end: float = 0.012
    timesteps: int = 1000
    offset: int = 1

    @classmethod
    def of(cls, section: ConfigReader) -> Schedule:
        """From a checkpoint's `scheduler_config.json`. UsageError for a schedule of other mathematics."""
        for key, name in _CHOICES.items():
            section.choice(key, {name: None}, default=name)
        section.refuse(_OTHER_MATHEMATICS)
        return cls(
            section.number("beta_start", cls().beta_start),
            section.number("beta_end", cls().beta_end),
            section.integer("num_train_timesteps", cls().timesteps),
            section.integer("steps_offset", cls().offset, minimum=0),
        )

    def levels(self, steps: int) -> tuple[Tensor, Tensor]:
        """Timesteps float32 [steps] and noise levels float32 [steps + 1], on the CPU."""
        low, high = self.beta_start**0.5, self.beta_end**0.5
        betas_M = torch.linspace(low, high, self.timesteps, dtype=torch.float64, device="cpu") ** 2
        alphas_M = (1 - betas_M).cumprod(0)
        at_N = torch.arange(steps - 1, -1, -1, device="cpu") * (self.timesteps // steps) + self.offset
        alphas_N = alphas_M[at_N.clamp_max(self.timesteps - 1)]
        levels = torch.cat((((1 - alphas_N) / alphas_N).sqrt(), torch.zeros(1, dtype=torch.float64)))
        return at_N.float(), levels.float()


def first_state(noise: Tensor, levels_N: Tensor) -> Tensor:
    """What denoising begins with, in the dtype of the noise."""
    return (noise * (levels_N[0] ** 2 + 1).sqrt()).to(noise.dtype)


def model_input(x: Tensor, level_B: Tensor) -> Tensor:
    """Of variance one, in the dtype of x."""
    return (x.to(level_B.dtype) / (_beside(level_B, x) ** 2 + 1).sqrt()).to(x.dtype)


def guided(without: Tensor, prompted: Tensor, scale_B: Tensor) -> Tensor:
    """In the dtype of the scale."""
    base = without.to(scale_B.dtype)
    return base + _beside(scale_B, base) * (prompted.to(scale_B.dtype) - base)


def step(x: Tensor, noise: Tensor, level_B: Tensor, next_level_B: Tensor) -> Tensor:
    """x at the next level, in its dtype."""
    change = _beside(next_level_B - level_B, x)
    return (x.to(level_B.dtype) + change * noise.to(level_B.dtype)).to(x.dtype)


def _beside(values_B: Tensor, x: Tensor) -> Tensor:
    """[B, 1 ..], as many dimensions as x."""
    return values_B.view(-1, *[1] * (x.dim() - 1))
