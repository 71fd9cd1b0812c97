"""Log-mel features of audio clips.

    p[k, f] = |sum_n w[n] a[f h + n - L/2] exp(-2 pi i k n / L)|^2    a reflected at both ends, w as Hann's
    m[j, f] = log10(max(sum_k filters[j, k] p[k, f], 1e-10))
    y[j, f] = (max(m[j, f], max m - 8) + 4) / 4                       max m over the clip

B clips, N samples, M bands, L samples of the window, hop h, F = N // h frames (the one centred behind the
last sample is dropped). Filters are Slaney's triangles from 0 Hz to half of the sampling rate. Everything is
float32, whatever the model's dtype.
Mirrors transformers.WhisperFeatureExtractor on clips of one length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class LogMel(nn.Module):
    window: Tensor
    filters: Tensor

    def __init__(
        self, feature_size: int, sampling_rate: int = 16000, n_fft: int = 400, hop_length: int = 160
    ) -> None:
        super().__init__()
        self.hop_length = hop_length
        # Made on the CPU: on the meta device they would import torch's compiler, 2 s of every start.
        with torch.device("cpu"):
            window_L = torch.hann_window(n_fft, periodic=True, dtype=torch.float64)
            filters_MK = kernels.mel_filters(feature_size, n_fft, sampling_rate)
        for name, table in (("window", window_L), ("filters", filters_MK)):
            self.register_buffer(name, table.float().to(torch.get_default_device()), persistent=False)

    def forward(self, raw_speech: Tensor) -> Tensor:
        """float32 [B, N], values -1 .. 1 -> float32 [B, M, N // hop]"""
        return kernels.log_mel(raw_speech, self.window, self.filters, self.hop_length)
