"""DDIM without noise of its own, for a model that predicts the clean sample.

    f(u) = cos^2((u + 0.008) / 1.008 pi/2)
    a_t = prod_{i <= t} (1 - min(1 - f((i + 1)/N) / f(i/N), 0.999)) N training steps, squared cosine
    e = (x - sqrt(a_t) m) / sqrt(1 - a_t)                           m: what the model predicts, as it is
    x' = sqrt(a_s) clip(m, -1, 1) + sqrt(1 - a_s) e                 s = t - N/S; a_s = 1 behind the last

S steps t = N - N/S .. N/S, 0. This is the mathematics of diffusers' DDIMScheduler with eta 0 and
timestep_spacing "leading".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fastkernels.nn.config import ConfigReader

MOST_BETA = 0.999


@dataclass(frozen=True, slots=True)
class Step:
    """From one level of noise to the next; they are shares of the clean sample's variance."""

    level: float
    next_level: float

    def __call__(self, x: Tensor, predicted: Tensor) -> Tensor:
        """In the dtype of x, which is at least float32."""
        predicted = predicted.to(x.dtype)
        noise = torch.add(x, predicted, alpha=-math.sqrt(self.level))
        clean = predicted.clamp(-1, 1) * math.sqrt(self.next_level)
        return torch.add(clean, noise, alpha=math.sqrt((1 - self.next_level) / (1 - self.level)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a run, first ones first, and their timesteps."""

    timesteps: range
    levels: tuple[float, ...]  # one more than steps

    @classmethod
    def of(cls, section: ConfigReader, steps: int) -> Schedule:
        """From the section of the scheduler. UsageError for a schedule of other mathematics."""
        section.choice("beta_schedule", {"squaredcos_cap_v2": None})
        section.choice("prediction_type", {"sample": None})
        section.choice("timestep_spacing", {"leading": None}, default="leading")
        section.refuse(("thresholding", "rescale_betas_zero_snr", "steps_offset"), (None, False, 0))
        for key in ("clip_sample", "set_alpha_to_one"):
            if not section.flag(key, default=True):
                raise section.error(key, "false is not supported")
        if (bound := section.number("clip_sample_range", 1.0)) != 1:
            raise section.error("clip_sample_range", f"{bound:g} is not supported; supported: 1")
        trained = section.integer("num_train_timesteps")
        if steps > trained:
            raise section.error("num_train_timesteps", f"{trained} is less than num_inference_steps, {steps}")
        stride = trained // steps
        timesteps = range((steps - 1) * stride, -1, -stride)
        levels, level = [], 1.0
        for at, after in pairwise(_remaining(i / trained) for i in range(trained + 1)):
            level *= 1 - min(1 - after / at, MOST_BETA)
            levels.append(level)
        return cls(timesteps, (*(levels[t] for t in timesteps), 1.0))

    def __iter__(self) -> Iterator[Step]:
        return (Step(*levels) for levels in pairwise(self.levels))


def _remaining(u: float) -> float:
    return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2
