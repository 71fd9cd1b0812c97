"""One side of a trial of a model that listens: clips are loaded first, then asked for as prompts are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.runner.token_side import TokenSide


class SpeechSide(TokenSide):
    _clips: list[Tensor]

    def load(self, clips: list[np.ndarray]) -> dict[str, Any]:
        """Take clips float32 [N] for the next call, one for each of its prompts."""
        self._clips = [torch.from_numpy(clip) for clip in clips]
        return {}

    def prompts(self, prompts: list[list[int]]) -> list[Any]:
        return [
            {"prompt_token_ids": ids, "multi_modal_data": {"audio": clip}}
            for ids, clip in zip(prompts, self._clips, strict=True)
        ]

    def run_once(self, *, clips: list[np.ndarray], prompts: list[list[int]], max_tokens: int) -> None:
        self.load(clips)
        self.generate(prompts, max_tokens)
