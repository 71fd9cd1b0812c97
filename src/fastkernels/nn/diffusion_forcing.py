"""Diffusion forcing: every frame of a clip has a noise level of its own, and the next one is denoised behind
frames that are done.

    sigma(s) = sigmoid(e) - sigmoid(b + s (e - b) / M),  b = -3, e = 3
    beta[m] = min(1 - sigma(m + 1) / sigma(m), 0.999),  abar[m] = prod_{i <= m} (1 - beta[i])   m < M
    r = trunc(linspace(-1, M - 1, N + 1))                              levels of N steps, the last one first
    x0 = sqrt(abar) x - sqrt(1 - abar) v
    eps = (sqrt(1 / abar) x - x0) / sqrt(1 / abar - 1)
    x' = sqrt(abar') x0 + sqrt(1 - abar') eps                          DDIM; abar' = 1 after the last step

M noise levels, v the model's prediction. beta is computed in float64 but for sigmoid(e), which is float32 as
open-oasis has it, and rounded to float32, the dtype of the product; a step has the dtype of x.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

START, END = -3.0, 3.0
MOST_BETA = 0.999


def alphas_cumprod(levels: int) -> list[float]:
    """abar of each noise level: values of float32."""
    at = START + (END - START) * torch.arange(levels + 1, dtype=torch.float64, device="cpu") / levels
    sigma = torch.tensor(END, dtype=torch.float32, device="cpu").sigmoid() - at.sigmoid()
    beta = (1 - sigma[1:] / sigma[:-1]).clamp_max(MOST_BETA).float()
    return (1 - beta).cumprod(0).tolist()


def steps_of(count: int, alphas: list[float]) -> list[tuple[int, float, float]]:
    """(noise level, abar, abar') of each step, the noisiest first."""
    places = torch.linspace(-1, len(alphas) - 1, count + 1, dtype=torch.float64, device="cpu").long().tolist()
    after = [1.0, *(alphas[level] for level in places[1:-1])]
    return [(level, alphas[level], to) for level, to in zip(places[1:], after)][::-1]


def ddim_step(x: Tensor, v: Tensor, alpha: float, next_alpha: float) -> Tensor:
    """x at the next level."""
    start = math.sqrt(alpha) * x - math.sqrt(1 - alpha) * v.to(x.dtype)
    noise = (math.sqrt(1 / alpha) * x - start) / math.sqrt(1 / alpha - 1)
    return math.sqrt(next_alpha) * start + math.sqrt(1 - next_alpha) * noise
