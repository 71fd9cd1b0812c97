"""Flow matching: the noise levels of a denoising run, and one Euler step along the model's velocity.

    s_i = 1 - i (1 - 1/N) / (N - 1)                       i = 0 .. N - 1: from 1 to 1/N
    sigma_i = e^mu / (e^mu + 1/s_i - 1),  sigma_N = 0     larger images stay noisy for longer
    x_{i+1} = x_i + (sigma_{i+1} - sigma_i) v(x_i, sigma_i)

N steps; mu is linear in the tokens of an image. Levels and the step are float32, the step is rounded to the
dtype of x. This is the mathematics of diffusers' FlowMatchEulerDiscreteScheduler with dynamic shifting.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# (tokens of an image, mu) through which the line goes: the scheduler's base and largest shift.
BASE, LARGEST = (256, 0.5), (4096, 1.15)
TIMESTEPS = 1000  # a model sees a level times this


def noise_levels(steps: int, tokens: int) -> Tensor:
    """float32 [steps + 1] on the CPU, from 1 down to 0."""
    slope = (LARGEST[1] - BASE[1]) / (LARGEST[0] - BASE[0])
    shift = math.exp(BASE[1] + slope * (tokens - BASE[0]))
    even = torch.linspace(1.0, 1.0 / steps, steps, dtype=torch.float64)
    return torch.cat((shift / (shift + 1 / even - 1), torch.zeros(1, dtype=torch.float64))).float()


def timesteps(levels_B: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 [B]: levels as a model of `dtype` embeds them. They are rounded to it three times: as
    timesteps, divided by 1000 as they cross to the model, and multiplied by it again there."""
    return _thousandfold((TIMESTEPS * levels_B).to(dtype) / TIMESTEPS)


def guidance(scales_B: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 [B]: guidance scales as a model of `dtype` embeds them; in bfloat16 3.5 gives 3504."""
    return _thousandfold(scales_B.to(dtype))


def _thousandfold(x_B: Tensor) -> Tensor:
    return (x_B * TIMESTEPS).to(torch.promote_types(x_B.dtype, torch.float32))


def euler_step(x_BLC: Tensor, velocity_BLC: Tensor, level_B: Tensor, next_level_B: Tensor) -> Tensor:
    """x at the next level, in the dtype of x."""
    change_B11 = (next_level_B - level_B)[:, None, None]
    return (x_BLC.to(level_B.dtype) + change_B11 * velocity_BLC.to(level_B.dtype)).to(x_BLC.dtype)
