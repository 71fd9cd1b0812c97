"""Audio in the forms that callers have it, and clips of any length as one launch."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.batching import described, require_values, sent

MOST_AMPLITUDE = 1e4  # of audio between -1 and 1; far above it the front end's squares overflow


class Clips:
    """Mono audio [N] as the float32 [B, num_samples] of a launch, zeros behind shorter clips."""

    def __init__(self, num_samples: int, sampling_rate: int, device: torch.device) -> None:
        self.num_samples, self.sampling_rate, self.device = num_samples, sampling_rate, device

    def clip(self, given: Any) -> Tensor:
        """A caller's audio, samples [N] or [1, N], or with the samples a second beside it, as a tensor that
        `key` takes. RequestError for what is no audio of this model."""
        samples = given
        if isinstance(given, tuple) and len(given) == 2:
            samples, rate = given
            self._require_rate(rate)
        audio = samples
        if isinstance(samples, np.ndarray) and samples.dtype.kind in "fiu" and samples.dtype.itemsize <= 8:
            # A copy: it may be read-only, run backwards, or have the bytes of another machine.
            audio = torch.from_numpy(samples.astype(samples.dtype.newbyteorder("="), order="C"))
        if isinstance(audio, Tensor):
            require_values("audio", audio)
            if audio.dim() == 2 and len(audio) == 1:
                audio = audio[0]  # one channel, as libraries that read files give it
        self.key((audio,))
        audio = audio.detach()
        loudest = float(audio.abs().amax())  # on CUDA the host waits here, once for each clip
        if not math.isfinite(loudest):
            raise RequestError("audio holds values that are not finite: samples lie between -1 and 1")
        if loudest > MOST_AMPLITUDE:
            raise RequestError(
                f"audio holds a sample of size {loudest:.4g}: the model takes samples between -1 and 1. "
                "Scale it (16-bit integers: divide by 32768)"
            )
        return audio

    def key(self, args: tuple[Any, ...]) -> Hashable:
        (audio,) = args
        if not isinstance(audio, Tensor):
            raise RequestError(f"audio must be a float32 tensor or array [samples], not {described(audio)}")
        require_values("audio", audio)
        if audio.dtype != torch.float32:
            dtype = str(audio.dtype).removeprefix("torch.")
            raise RequestError(
                f"audio is {dtype}: the model takes float32 between -1 and 1. "
                f"Convert it{'' if audio.is_floating_point() else ' (16-bit integers: divide by 32768)'}"
            )
        if audio.dim() != 1:
            raise RequestError(
                f"audio of shape {list(audio.shape)}: the model takes [samples] of one channel. "
                f"{_advice(audio.shape)}"
            )
        if not len(audio):
            raise RequestError("audio is empty: 0 samples")
        if len(audio) > self.num_samples:
            raise RequestError(
                f"audio of {len(audio)} samples, {len(audio) / self.sampling_rate:.1f} s: the model takes up "
                f"to {self.num_samples}, {self.num_samples / self.sampling_rate:g} s. Cut it into clips"
            )
        return audio.device

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        audio_BN = torch.zeros(len(calls), self.num_samples, device=calls[0][0].device)
        for row_N, (audio,) in zip(audio_BN, calls):
            row_N[: len(audio)] = audio
        return [sent(audio_BN, self.device)]

    def _require_rate(self, rate: Any) -> None:
        is_rate = isinstance(rate, numbers.Real) and not isinstance(rate, bool)
        if not is_rate or rate != self.sampling_rate:
            raise RequestError(
                f"audio of {rate!r:.20} samples a second: the model takes {self.sampling_rate}. "
                f"{'Resample it' if is_rate else 'Give (samples, rate), the rate a number'}"
            )


def _advice(shape: Sequence[int]) -> str:
    """What makes one channel of audio that has further dimensions."""
    if shape and math.prod(shape) == max(shape):
        return "Flatten it"
    return "Average its channels" if len(shape) == 2 else "Give one clip a request"
