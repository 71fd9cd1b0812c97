"""One side of a trial of a language model. The judge times `generate` and `outputs` together, with its own
clock: neither the clock nor the word that the tokens are there is in this process's hands."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.runner.model_side import ModelSide


class TokenSide(ModelSide):
    def __init__(self, layers: Sequence[str], model: str, noise: Sequence[str] = (), **engine: Any) -> None:
        super().__init__(layers, noise)
        self.llm = LLM(model, overlay=self.overlay, **engine)
        self.model, self.device = self.llm.model, self.llm.device
        self._outputs: list[list[int]] = []

    def requests(self, prompts: list[list[int]], **handed: Any) -> list[Any]:
        """What the engine takes for prompts, and for what is handed over beside them."""
        return prompts

    def generate(self, prompts: list[list[int]], max_tokens: int, **handed: Any) -> dict[str, Any]:
        """Greedy, exact lengths; the tokens stay here until `outputs`."""
        return self._answer(self.requests(prompts, **handed), max_tokens)

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
        asked = self.requests(prompts, **handed)
        outputs = self.llm.generate(asked, params, use_tqdm=False, forced=continuations)
        results = [o.outputs[0] for o in outputs]
        tops = [
            [{str(i): one.logprob for i, one in position.items()} for position in r.logprobs or ()]
            for r in results
        ]
        return {"argmax": [list(r.token_ids) for r in results], "top": tops}

    def eager(self) -> AbstractContextManager[None]:
        return self.llm.eager()

    def run_once(self, *, prompts: list[list[int]], max_tokens: int) -> None:
        self.generate(prompts, max_tokens)

    def engine_stats(self) -> dict[str, Any]:
        return self.llm.stats()

    def _answer(self, requests: list[Any], max_tokens: int) -> dict[str, Any]:
        greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        outputs = self.llm.generate(requests, greedy, use_tqdm=False)
        self._outputs = [list(o.outputs[0].token_ids) for o in outputs]
        return {"requests": len(self._outputs)}
