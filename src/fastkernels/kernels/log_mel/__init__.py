"""Logarithms of the energies of audio in mel bands, as speech models read it.

    p[k, f] = |sum_n window[n] a[f hop + n - L/2] exp(-2 pi i k n / L)|^2        a reflected at both ends
    m[j, f] = log10(max(sum_k filters[j, k] p[k, f], 1e-10))
    y[j, f] = (max(m[j, f], max m - 8) + 4) / 4                                  max m over the clip

B clips · N samples · L samples of the window · K = L/2 + 1 frequencies · M bands · F = N // hop frames: the
one that is centred behind the last sample is dropped. Everything in the dtype of the audio, at least float32.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.log_mel import reference
from fastkernels.kernels.log_mel.filters import mel_filters

__all__ = ["log_mel", "mel_filters"]


def _fake(audio_BN: Tensor, window_L: Tensor, filters_MK: Tensor, hop: int) -> Tensor:
    return audio_BN.new_empty((audio_BN.shape[0], filters_MK.shape[0], audio_BN.shape[1] // hop))


_log_mel = Kernel(
    "log_mel",
    "(Tensor audio, Tensor window, Tensor filters, SymInt hop) -> Tensor",
    reference.log_mel,
    fake=_fake,
    implementations=(Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),),
    rows=lambda audio_BN, *_: audio_BN.shape[0],
)


def log_mel(
    audio_BN: Tensor, window_L: Tensor, filters_MK: Tensor, hop: int, *, impl: str | None = None
) -> Tensor:
    """[B, M, N // hop], contiguous; all tensors float32 (or float64), L even, N more than L/2.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _log_mel(audio_BN, window_L, filters_MK, hop, impl=impl)
