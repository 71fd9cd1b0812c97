"""log_mel in plain PyTorch: frames by the matrix of the Fourier transform."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastkernels.kernels.log_mel.levels import levels


def log_mel(audio_BN: Tensor, window_L: Tensor, filters_MK: Tensor, hop: int) -> Tensor:
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
