"""log_mel by PyTorch's short-time Fourier transform: cuFFT on CUDA, PocketFFT or MKL on CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.log_mel.levels import levels


def log_mel(audio_BN: Tensor, window_L: Tensor, filters_MK: Tensor, hop: int) -> Tensor:
    waves_BKF = torch.stft(
        audio_BN, len(window_L), hop, window=window_L, center=True, pad_mode="reflect", return_complex=True
    )
    power_BKF = torch.view_as_real(waves_BKF[:, :, : audio_BN.shape[1] // hop]).square().sum(-1)
    return levels(filters_MK @ power_BKF)
