"""Flow matching: the noise levels of a denoising run, and one Euler step along the model's velocity.

    s_i = 1 - i (1 - 1/N) / (N - 1)                       i = 0 .. N - 1: from 1 to 1/N
    sigma_i = a / (a + 1/s_i - 1),  sigma_N = 0           the shift a: images stay noisy for longer
    x_{i+1} = x_i + (sigma_{i+1} - sigma_i) v(x_i, sigma_i)

N steps; log a is linear in the tokens of an image, or a is the same for all. Levels and the step are float32,
the step is rounded to the dtype of x. This is the mathematics of diffusers' FlowMatchEulerDiscreteScheduler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels.nn.config import ConfigReader

TIMESTEPS = 1000  # a model sees a level times this
_OTHER_MATHEMATICS = (
    "invert_sigmas",
    "shift_terminal",
    "stochastic_sampling",
    "use_beta_sigmas",
    "use_exponential_sigmas",
    "use_flow_sigmas",
    "use_karras_sigmas",
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The shift of an image. base, largest: (tokens, log a) through which the line goes; fixed: a, where it
    is the same for every image."""

    base: tuple[int, float] = (256, 0.5)
    largest: tuple[int, float] = (4096, 1.15)
    fixed: float | None = None

    @classmethod
    def of(cls, section: ConfigReader) -> Schedule:
        """From a checkpoint's `scheduler_config.json`. UsageError for a schedule of other mathematics."""
        section.choice("_class_name", {"FlowMatchEulerDiscreteScheduler": None})
        section.choice("time_shift_type", {"exponential": None}, default="exponential")
        section.refuse(_OTHER_MATHEMATICS)
        if (timesteps := section.integer("num_train_timesteps", TIMESTEPS)) != TIMESTEPS:
            raise section.error(
                "num_train_timesteps", f"{timesteps} is not supported; supported: {TIMESTEPS}"
            )
        if not section.flag("use_dynamic_shifting"):
            return cls(fixed=section.number("shift", 1.0))
        base, largest = (
            (section.integer(f"{end}_image_seq_len", tokens), section.number(f"{end}_shift", log_shift))
            for end, (tokens, log_shift) in (("base", cls().base), ("max", cls().largest))
        )
        if base[0] >= largest[0]:
            raise section.error("max_image_seq_len", f"must be more than base_image_seq_len, {base[0]}")
        return cls(base, largest)

    def shift(self, tokens: int) -> float:
        if self.fixed is not None:
            return self.fixed
        slope = (self.largest[1] - self.base[1]) / (self.largest[0] - self.base[0])
        return math.exp(self.base[1] + slope * (tokens - self.base[0]))


def noise_levels(steps: int, tokens: int, schedule: Schedule = Schedule()) -> Tensor:
    """float32 [steps + 1] on the CPU, from 1 down to 0."""
    shift = schedule.shift(tokens)
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
