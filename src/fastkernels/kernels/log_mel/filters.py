"""Mel filters on Slaney's scale: triangles of equal area, evenly spaced up to 1 kHz and logarithmically
above.

mel(f) = f / (200/3)                             f < 1000 Hz
mel(f) = 15 + 27 log(f / 1000) / log(6.4)        above
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

HZ_PER_MEL, CORNER_HZ, MELS_PER_E = 200 / 3, 1000.0, 27 / math.log(6.4)
CORNER_MEL = CORNER_HZ / HZ_PER_MEL


def mel_filters(num_bands: int, window: int, sampling_rate: int) -> Tensor:
    """[bands, window // 2 + 1] float64: the weight of each frequency of a transform of `window` samples, for
    bands between 0 Hz and half of the sampling rate."""
    half_hz = sampling_rate / 2
    hz_K = torch.linspace(0, half_hz, window // 2 + 1, dtype=torch.float64)
    edges_hz = _hz(torch.linspace(0, _mel(half_hz), num_bands + 2, dtype=torch.float64))
    low, centre, high = (edges_hz[i : i + num_bands, None] for i in range(3))
    rising_MK, falling_MK = (hz_K - low) / (centre - low), (high - hz_K) / (high - centre)
    return rising_MK.minimum(falling_MK).clamp(min=0) * (2 / (high - low))


def _mel(hz: float) -> float:
    return hz / HZ_PER_MEL if hz < CORNER_HZ else CORNER_MEL + MELS_PER_E * math.log(hz / CORNER_HZ)


def _hz(mel: Tensor) -> Tensor:
    return torch.where(
        mel < CORNER_MEL, mel * HZ_PER_MEL, CORNER_HZ * ((mel - CORNER_MEL) / MELS_PER_E).exp()
    )
