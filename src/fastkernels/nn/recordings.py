"""Audio clips of any length for a tower that listens to them chunk by chunk.

    frames   mel frames of a clip, one for each `hop` samples, the last one may be short
    chunks   `most` frames each; a clip's last one is shorter. A chunk of L frames becomes (L + 1) // 2 rows
    tokens   two rows of a clip each, also across the edge of two chunks; an odd last row is dropped

A clip is followed by silence, as the usual processors pad it: frames behind it are no part of it, but its
loudest frame may be the first of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.audio import Clips
from fastkernels.nn.batching import sent
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.media import Item
from fastkernels.nn.program import Call, Place

SAMPLING_RATE, HOP, WINDOW, MOST_SAMPLES = 16000, 160, 400, 300 * 16000
# Of a launch, silence behind shorter clips included: two of the longest clips.
MOST_FRAMES = 1 << 16
_SILENT = 3  # frames behind the longest clip: no window that reaches into it is reflected at the end
_DIGEST_BYTES = 16
_LEAST_FRAMES = 3  # fewer make one row, which is no token


class Recording:
    """float32 [N] on the host, which nobody changes."""

    def __init__(self, samples: Tensor) -> None:
        self.samples, self.num_frames = samples, -(-len(samples) // HOP)
        self.digest = hashlib.blake2b(samples.numpy().data, digest_size=_DIGEST_BYTES).digest()

    @property
    def num_tokens(self) -> int:
        return (self.num_frames + 1) // 2 // 2


class Recordings:
    """Clips, float32 [N] or [1, N], alone or as (samples, rate). A token of a clip is one position further on
    all axes, like text."""

    def __init__(self, placeholder: int, stage: str, most_samples: int) -> None:
        self.placeholder, self.stage = placeholder, stage
        self._clips = Clips(most_samples, SAMPLING_RATE, torch.device("cpu"))

    def item(self, given: Any, about: Any = None) -> Item:
        samples = self._clips.clip(given if about is None else (given, about)).cpu().clone()
        recording = Recording(samples)
        if recording.num_frames < _LEAST_FRAMES:
            raise RequestError(
                f"audio of {len(samples)} samples: the model takes at least {(_LEAST_FRAMES - 1) * HOP + 1}, "
                "which make a token. Pad it with silence"
            )
        offsets_3N = np.tile(np.arange(recording.num_tokens), (3, 1))
        return Item(Call(self.stage, recording), (offsets_3N,))


def longest(processor: Mapping[str, Any]) -> int:
    """Samples of a clip at most, as a preprocessor_config.json says them. UsageError for features of another
    kind than the model's."""
    reader = ConfigReader(processor, "preprocessor_config.json: ")
    for key, value in (("sampling_rate", SAMPLING_RATE), ("hop_length", HOP), ("n_fft", WINDOW)):
        if (found := reader.integer(key, default=value)) != value:
            raise reader.error(key, f"must be {value}, not {found}")
    return reader.integer("n_samples", default=MOST_SAMPLES)


class Chunks:
    """A launch gets raw_speech float32 [B, N], silence behind shorter clips; frame_index int64 [C, L], of
    each chunk which of the B * (N // hop) frames it has, below 0 behind a shorter one's last; cu_seqlens
    int32 [C+1] of the chunks' rows, how many the longest has and how many there are; pairs int64 [P, 2], the
    rows of each token. It returns a row for each token [P, D]."""

    def __init__(self, most: int, place: Place) -> None:
        self.most, self.device = most, place.device

    def key(self, args: tuple[Any, ...]) -> Hashable:
        return None

    def fitting(self, calls: Sequence[tuple[Any, ...]]) -> int:
        """How many of the first calls one launch takes."""
        most = accumulate((recording.num_frames for (recording,) in calls), max)
        return max(1, sum(count * frames <= MOST_FRAMES for count, frames in enumerate(most, 1)))

    def largest(self) -> list[Any]:
        silence = Recording(torch.zeros(MOST_SAMPLES))
        return self.join([(silence,)] * (MOST_FRAMES // silence.num_frames))

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        recordings = [recording for (recording,) in calls]
        width = max(recording.num_frames for recording in recordings) + _SILENT
        raw_BN = torch.zeros(len(recordings), width * HOP)
        for row_N, recording in zip(raw_BN, recordings):
            row_N[: len(recording.samples)] = recording.samples
        index_CL, starts_C1, pairs_P2 = laid_out([one.num_frames for one in recordings], width, self.most)
        tensors = (raw_BN, *map(torch.from_numpy, (index_CL, starts_C1, pairs_P2)))
        raw_BN, index, starts, pairs = (sent(tensor, self.device) for tensor in tensors)
        return [raw_BN, index, starts, int(np.diff(starts_C1).max()), int(starts_C1[-1]), pairs]

    def divide(self, result: Tensor, calls: Sequence[tuple[Any, ...]]) -> Sequence[Tensor]:
        return result.split([recording.num_tokens for (recording,) in calls])


def laid_out(
    frames: Sequence[int], width: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """frame_index [C, L], cu_seqlens [C+1] and pairs [P, 2] of clips with so many frames each, of `width`
    frames with their silence, in chunks of `most`. L is even."""
    chunks = [
        (clip * width + begin, min(most, count - begin))
        for clip, count in enumerate(frames)
        for begin in range(0, count, most)
    ]
    firsts_C, lengths_C = np.array(chunks).T
    at_L = np.arange(-(-lengths_C.max() // 2) * 2)
    index_CL = np.where(at_L < lengths_C[:, None], firsts_C[:, None] + at_L, -1)
    starts_C1 = np.concatenate([[0], np.cumsum((lengths_C + 1) // 2)]).astype(np.int32)
    ends = accumulate(sum((min(most, n - at) + 1) // 2 for at in range(0, n, most)) for n in frames)
    firsts = [0, *ends][:-1]
    pairs_P = np.concatenate(
        [first + 2 * np.arange((count + 1) // 2 // 2) for first, count in zip(firsts, frames)]
    )
    return index_CL, starts_C1, np.stack((pairs_P, pairs_P + 1), axis=1)
