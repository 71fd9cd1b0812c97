"""One side of a trial of a language model. The judge times `generate` and `outputs` together, with its own
clock: neither the clock nor the word that the tokens are there is in this process's hands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.runner.models.model_side import ModelSide
from fastkernels.runner.transfer.arrays import taken

PROOF_TOKENS = 8


class TokenSide(ModelSide):
    def __init__(self, layers: Sequence[str], model: str, noise: Sequence[str] = (), **engine: Any) -> None:
        super().__init__(layers, noise)
        self.llm = LLM(model, overlay=self.overlay, **engine)
        self.model, self.device = self.llm.model, self.llm.device
        self._outputs: list[list[int]] = []

    def generate(self, prompts: list[list[int]], max_tokens: int, **handed: Any) -> dict[str, Any]:
        """Greedy, exact lengths; the tokens stay here until `outputs`."""
        greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        outputs = self.llm.generate(_asked(prompts, **handed), greedy, use_tqdm=False)
        self._outputs = [list(o.outputs[0].token_ids) for o in outputs]
        return {"requests": len(self._outputs)}

    def outputs(self) -> dict[str, Any]:
        return {"token_ids": self._outputs}

    def forced(
        self, prompts: list[list[int]], continuations: list[list[int]], top: int, **handed: Any
    ) -> dict[str, Any]:
        """Decode along given tokens: at each position the argmax and the `top` largest log-probabilities."""
        params = [
            SamplingParams(temperature=0.0, max_tokens=len(ids), ignore_eos=True, logprobs=top or None)
            for ids in continuations
        ]
        asked = _asked(prompts, **handed)
        outputs = self.llm.generate(asked, params, use_tqdm=False, forced=continuations)
        results = [o.outputs[0] for o in outputs]
        tops = [
            [{str(i): one.logprob for i, one in position.items()} for position in r.logprobs or ()]
            for r in results
        ]
        return {"argmax": [list(r.token_ids) for r in results], "top": tops}

    def eager(self) -> AbstractContextManager[None]:
        return self.llm.eager()

    def run_once(self, prompts: list[list[int]], **handed: Any) -> None:
        self.generate(prompts, PROOF_TOKENS, **handed)

    def engine_stats(self) -> dict[str, Any]:
        return self.llm.stats()


def _asked(
    prompts: list[list[int]], requests: Sequence[Mapping[str, Any]] = (), descriptors: Sequence[int] = ()
) -> list[Any]:
    """What the engine takes for prompts, and for the media that are handed over beside them."""
    if not descriptors:
        return prompts
    return [
        {"prompt_token_ids": ids, "multi_modal_data": {k: torch.from_numpy(v) for k, v in media.items()}}
        for ids, media in zip(prompts, taken(requests, descriptors), strict=True)
    ]
