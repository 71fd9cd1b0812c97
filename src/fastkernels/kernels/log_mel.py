"""Logarithms of the energies of audio in mel bands, as speech models read it.

    p[k, f] = |sum_n window[n] a[f hop + n - L/2] exp(-2 pi i k n / L)|^2        a reflected at both ends
    m[j, f] = log10(max(sum_k filters[j, k] p[k, f], 1e-10))
    y[j, f] = (max(m[j, f], max m - 8) + 4) / 4                                  max m over the clip

B clips · N samples · L samples of the window · K = L/2 + 1 frequencies · M bands · F = N // hop frames: the
one that is centred behind the last sample is dropped. Everything in the dtype of the audio, at least float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastkernels.kernels.base import Implementation, Kernel


def _fake(audio_BN: Tensor, window_L: Tensor, filters_MK: Tensor, hop: int) -> Tensor:
    return audio_BN.new_empty((audio_BN.shape[0], filters_MK.shape[0], audio_BN.shape[1] // hop))


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


LEAST = 1e-10
RANGE = 8.0


def levels(energy_BMF: Tensor) -> Tensor:
    """[B, M, F] of each clip by itself."""
    log_BMF = energy_BMF.clamp(min=LEAST).log10()
    floor_B11 = log_BMF.amax((1, 2), keepdim=True) - RANGE
    return (log_BMF.maximum(floor_B11) + 4) / 4


def _reference(audio_BN: Tensor, window_L: Tensor, filters_MK: Tensor, hop: int) -> Tensor:
    """Frames by the matrix of the Fourier transform."""
    length, dtype, device = len(window_L), audio_BN.dtype, audio_BN.device
    frames_BFL = pad(audio_BN[:, None], (length // 2, length // 2), mode="reflect")[:, 0].unfold(
        -1, length, hop
    )
    windowed_BFL = frames_BFL[:, : audio_BN.shape[1] // hop] * window_L
    # The product of indices is reduced as an integer: angles of thousands of turns would lose their digits.
    turns_LK = torch.outer(torch.arange(length), torch.arange(length // 2 + 1)) % length
    angle_LK = turns_LK.double() * (2 * math.pi / length)
    cos_LK, sin_LK = (wave.to(device, dtype) for wave in (angle_LK.cos(), angle_LK.sin()))
    power_BFK = (windowed_BFL @ cos_LK).square() + (windowed_BFL @ sin_LK).square()
    return levels((power_BFK @ filters_MK.T).transpose(1, 2)).contiguous()


def _torch(audio_BN: Tensor, window_L: Tensor, filters_MK: Tensor, hop: int) -> Tensor:
    """cuFFT on CUDA, PocketFFT or MKL on a CPU."""
    waves_BKF = torch.stft(
        audio_BN, len(window_L), hop, window=window_L, center=True, pad_mode="reflect", return_complex=True
    )
    power_BKF = torch.view_as_real(waves_BKF[:, :, : audio_BN.shape[1] // hop]).square().sum(-1)
    return levels(filters_MK @ power_BKF)


_log_mel = Kernel(
    "log_mel",
    "(Tensor audio, Tensor window, Tensor filters, SymInt hop) -> Tensor",
    _reference,
    fake=_fake,
    implementations=(Implementation("torch", _torch, devices=("cpu", "cuda")),),
    rows=lambda audio_BN, *_: audio_BN.shape[0],
)


def log_mel(
    audio_BN: Tensor, window_L: Tensor, filters_MK: Tensor, hop: int, *, impl: str | None = None
) -> Tensor:
    """[B, M, N // hop], contiguous; all tensors float32 (or float64), L even, N more than L/2.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _log_mel(audio_BN, window_L, filters_MK, hop, impl=impl)
