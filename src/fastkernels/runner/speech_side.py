"""One side of a trial of a model that listens: asked as for prompts, with a clip handed over for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastkernels.runner.handed import taken
from fastkernels.runner.token_side import TokenSide


class SpeechSide(TokenSide):
    """Clips are float32 [N]."""

    def requests(self, prompts: list[list[int]], **handed: Any) -> list[Any]:
        return _heard(prompts, taken(**handed))

    def run_once(self, *, clips: list[np.ndarray], prompts: list[list[int]], max_tokens: int) -> None:
        self._answer(_heard(prompts, clips), max_tokens)


def _heard(prompts: list[list[int]], clips: list[np.ndarray]) -> list[Any]:
    return [
        {"prompt_token_ids": ids, "multi_modal_data": {"audio": torch.from_numpy(clip)}}
        for ids, clip in zip(prompts, clips, strict=True)
    ]
