"""Models that answer audio clips with tokens: as for prompts, compared by teacher forcing after each clip."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastkernels.records import Size
from fastkernels.registry.schema import SpeechSamples
from fastkernels.runner.handed import handed
from fastkernels.runner.token_answers import TokenAnswers

SAMPLING_RATE = 16000
TONES = 6  # of a synthetic clip, which change once in each part of it
PARTS = 4
PROOF_CLIPS = 4
Clips = list[np.ndarray]


class SpeechAnswers(TokenAnswers):
    """Inputs are clips, which reach a side with the word to generate. All have the same prompt."""

    noise_kernels = ("layer_norm", "add_layer_norm", "activation")

    def __init__(
        self,
        samples: SpeechSamples,
        prompt: tuple[int, ...],
        vocabulary: int,
        size: Size,
        rng: random.Random,
    ) -> None:
        super().__init__(samples, vocabulary, size, rng)
        self._prompt, self._seconds = list(prompt), samples.seconds

    def inputs(self, workload: Any) -> Clips:
        return self._clips(workload.requests, (workload.seconds, workload.seconds))

    def sampled(self) -> Clips:
        return self._clips(self._samples.requests, self._seconds)

    @contextlib.contextmanager
    def given(self, inputs: Clips) -> Iterator[dict[str, Any]]:
        with handed(inputs) as clips:
            yield {"prompts": [self._prompt] * len(inputs), **clips}

    def proof(self) -> dict[str, Any]:
        clips = self._clips(PROOF_CLIPS, self._seconds)
        return {"clips": clips, "prompts": [self._prompt] * PROOF_CLIPS, "max_tokens": 8}

    def _clips(self, count: int, seconds: tuple[float, float]) -> Clips:
        """float32 [N] each, values -1 .. 1; lengths are uniform in a range of seconds."""
        generator = np.random.default_rng(self._rng.getrandbits(64))
        return [_clip(generator, round(generator.uniform(*seconds) * SAMPLING_RATE)) for _ in range(count)]


def _clip(generator: np.random.Generator, samples: int) -> np.ndarray:
    """Tones between 60 and 6,000 Hz that change from part to part, and noise."""
    at_N = np.arange(samples) / SAMPLING_RATE
    part_N = np.arange(samples) * PARTS // samples
    hz = 60 * 100 ** generator.uniform(size=(PARTS, TONES))
    loud = generator.uniform(0, 1 / TONES, (PARTS, TONES))
    tones_NK = np.sin(2 * np.pi * at_N[:, None] * hz[part_N]) * loud[part_N]
    noise_N = generator.normal(size=samples) * generator.uniform(0.001, 0.03)
    return np.clip(tones_NK.sum(1) + noise_N, -1, 1).astype(np.float32)
